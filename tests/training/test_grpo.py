"""GRPO on rollout records: games are whole records, advantages, and an update that makes what paid likelier."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from plait.planners.threads.threads.dialects import load
from plait_research.rollouts.advantages import weighed
from plait_research.rollouts.record import Record, WeightsSegment
from training import export
from training.check import solves
from training.grpo import arms, five, warmup
from training.grpo.arms import evaluate, reinforce, supervise
from training.grpo.threads import play, records, reward, thread_reward
from training.grpo.trainer import Example, Learner, Loss, examples, update
from training.model import Llama, ModelConfig
from training.task import is_test
from training.vocab import decode, encode

MODEL = Path("packages/plait-models/plait_models/models/countdown")
SMALL = ModelConfig(d=32, layers=1, heads=2, ff=32)


def record(group: str, index: int, gain: float | None, own: float | None = None, token: int = 7) -> Record:
    return Record(
        rollout=f"{group}/{gain}/{token}", group=group, index=index, of=index + 1, parent=0 if index else None,
        tokens=(1, 2, token), mask=(0, 0, 1), logprobs=(0.0, 0.0, -5.0), segments=(WeightsSegment(start=2, end=3),),
        reward=gain, own=own,
    )  # fmt: skip


def test_traces_are_right_and_of_the_training_split() -> None:
    rng = random.Random(3)
    for _ in range(20):
        words = decode(five.child_trace(rng).ids).split()
        numbers, target = [int(word) for word in words[2 : words.index("<go>")]], int(words[1][1:])
        steps = " ".join(words[words.index("<hit>") + 1 : -1]).split(" ; ")
        lines = [(int(a), op, int(b), int(c)) for a, op, b, _, c in (step.split() for step in steps)]
        assert solves(lines, numbers, target)
    problems = five.held_out(30, seed=1)
    assert all(is_test(numbers) and five.solve(numbers, target) for numbers, target in problems)
    assert not any(is_test(five.draw_problem(rng, test=False)[0]) for _ in range(30))


def test_the_planners_dialect_reads_items_of_five_numbers() -> None:
    prompt = "<parent> 8 T36 14 10 8 3 2 <go>"
    items = load("countdown").items(
        "<spawn> 14 * 3 = 42 | 10 8 2 ; 14 + 3 = 18 | 10 8 2 ; 14 - 3 = 11 | 10 8 <wait>", prompt, 8
    )
    assert [item.header for item in items] == [" <child> T36 42 10 8 2 <go>", None, None]


def test_a_game_is_one_rollout_of_whole_records() -> None:
    torch.manual_seed(0)
    model = Llama(SMALL)
    (game, _) = play(model, five.held_out(2, seed=2), temperature=1.0, seed=4)
    made = records(game, "g", 0, policy=3)
    assert [each.index for each in made] == list(range(len(game.threads) + 1))
    assert sum(each.generated for each in made) == game.total
    assert {version for each in made for version in each.versions} == {3}
    assert made[0].reward == reward(game) == 0.0, "a model that was never trained solves nothing"


def test_threads_are_judged_from_their_tokens_as_the_game_judges_them() -> None:
    model = export.load(MODEL)
    games = play(model, five.held_out(6, seed=2), temperature=1.0, seed=4)
    made = [record for game in games for record in records(game, "g", 0, policy=0)]
    assert [thread_reward(record) for record in made] == [record.own for record in made]
    ids = encode("<child> T36 14 10 8 4 <go> <hit> 14 + 10 = 24 ; 24 + 8 = 32 ; 32 + 4 = 36 <end>")
    right = made[0].model_copy(update={"parent": 0, "tokens": tuple(ids)})
    assert thread_reward(right) == 1.0
    forked = [*encode("<parent> 8 T36 14 10 8 3 2 <go> <spawn> 14 * 3 = 42 | 10 8 2 <wait>"), *ids]
    assert thread_reward(right.model_copy(update={"tokens": tuple(forked)})) == 1.0, "its parent's context is before it"
    assert thread_reward(right.model_copy(update={"tokens": (*ids[:-2], ids[-3], ids[-1])})) == 0.0


def test_roles_of_a_game_are_those_of_the_planner() -> None:
    model = export.load(MODEL)
    made = [records(game, "g", 0, 0) for game in play(model, five.held_out(4, seed=3), 1.0, 5)]
    parents = [[segment.role for segment in rollout[0].segments] for rollout in made]
    assert all(roles[0] == "parent" and set(roles[1:]) <= {"join"} for roles in parents)
    assert {segment.role for rollout in made for record in rollout[1:] for segment in record.segments} <= {"thread"}
    assert {record.temperature for rollout in made for record in rollout} == {1.0}


def test_grpo_trains_on_what_has_an_advantage_and_rejection_on_what_was_right() -> None:
    made = weighed(
        [[record("a", 0, 1.0)], [record("a", 0, 0.0, token=8)], [record("b", 0, 1.0)], [record("b", 0, 1.0, token=9)]]
    )
    assert [example.record.group for example in examples(made, "grpo")] == ["a", "a"], "equal rewards teach nothing"
    right = examples(made, "rejection")
    assert [(example.record.group, example.gains) for example in right] == [
        ("a", [0.0, 0.0, 1.0]), ("b", [0.0, 0.0, 1.0]), ("b", [0.0, 0.0, 1.0]),
    ]  # fmt: skip
    thread = record("a", 1, 1.0, own=0.0)
    assert examples([[record("a", 0, 1.0), thread]], "rejection")[-1].record.index == 0, (
        "a thread that missed is not right"
    )


def likely(model: Llama) -> list[float]:
    with torch.no_grad():
        states = model.hidden(torch.tensor([[1, 2]]), torch.float32)
        return model.logits(states[:, -1], torch.float32).log_softmax(-1)[0, [7, 9]].tolist()


def drawn(model: Llama) -> list[list[Record]]:
    both = [record("a", 0, 1.0, token=7), record("a", 0, 0.0, token=9)]
    return weighed(
        [
            [made.model_copy(update={"logprobs": (0.0, 0.0, value)})]
            for made, value in zip(both, likely(model), strict=True)
        ]
    )


def test_an_update_makes_likelier_what_paid() -> None:
    torch.manual_seed(1)
    model = Llama(SMALL)
    before, rollouts = likely(model), drawn(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    figures = update(model, optimizer, examples(rollouts, "grpo"), Loss(), random.Random(0), parts=1)
    after = likely(model)
    assert after[0] > before[0] and after[1] < before[1]
    assert figures["gap"] < 0.02, "the trainer's log-probabilities are the sampler's but for bfloat16"


def test_a_token_has_its_own_segments_advantage() -> None:
    torch.manual_seed(1)
    model = Llama(SMALL)
    rollouts = [[each.model_copy(update={"segments": (each.segments[0].model_copy(update={"advantage": -1.0}),)})]
                for rollout in drawn(model) for each in rollout]  # fmt: skip
    before = likely(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update(model, optimizer, examples(rollouts, "grpo"), Loss(), random.Random(0), parts=1)
    after = likely(model)
    assert after[0] < before[0] and after[1] < before[1], "the rollouts' own advantages say the contrary of the first"


def test_the_likelihood_needs_no_ratio() -> None:
    torch.manual_seed(1)
    model = Llama(SMALL)
    before = likely(model)
    far = record("a", 0, 1.0)  # its sampler found it far less likely: a ratio would be clipped
    update(model, torch.optim.AdamW(model.parameters(), lr=1e-3), [Example(far, [0.0, 0.0, 1.0])], Loss(ratio=False),
           random.Random(0), parts=1)  # fmt: skip
    assert likely(model)[0] > before[0]


def test_a_learner_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    one = Learner(tmp_path / "a", MODEL)
    rollouts = drawn(one.model)
    one.step(rollouts)
    one.step(rollouts)
    two = Learner(tmp_path / "b", MODEL)
    two.step(rollouts)
    again = Learner(tmp_path / "b", MODEL)
    assert (again.version, again.weights) == (1, tmp_path / "b" / "model")
    again.step(rollouts)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), again.model.parameters(), strict=True))
    rows = [json.loads(line) for line in (tmp_path / "b" / "curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2] and rows[1]["cpu"] > rows[0]["cpu"]


def test_the_contenders_go_on_where_they_were(tmp_path: Path) -> None:
    learner = reinforce(tmp_path / "arm", MODEL, "grpo-thread", 1, 1, problems=1, branches=2)
    assert learner.version == 1 and learner.cpu > 0
    more = reinforce(tmp_path / "arm", MODEL, "grpo-thread", 1, 2, problems=1, branches=2)
    assert more.version == 2 and more.cpu > learner.cpu
    evaluate(more.weights, tmp_path / "rows.jsonl", 2, seed=5, part=1)
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    evaluate(more.weights, tmp_path / "rows.jsonl", 3, seed=5, part=1)
    assert (tmp_path / "rows.jsonl").read_text().splitlines()[:2] == rows and len(rows) == 2


def test_contenders_take_turns_and_are_played_after_each_leg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmup.run(tmp_path / "start", 1)
    monkeypatch.setattr(arms, "LEG", 1)
    monkeypatch.setattr(arms, "PART", 1)

    def supervised(folder: Path, start: Path, seed: int, seconds: float) -> float:
        (folder / "model").parent.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            shutil.copytree(start, folder / "model")
            (folder / "done.json").write_text(json.dumps({"cpu": seconds}))
        return seconds

    monkeypatch.setattr(arms, "supervise", supervised)  # it has a test of its own

    def race(steps: int) -> set[str]:
        race_of = (tmp_path / "five", tmp_path / "start" / "model", [1], steps)
        arms.race(*race_of, problems=1, branches=2, held_out=2, report=5)
        return {path.name.removesuffix(".rows.jsonl") for path in (tmp_path / "five").glob("*.rows.jsonl")}

    names = {"grpo-thread-1-1", "grpo-rollout-1-1", "rejection-1-1", "supervised-1-1"}
    assert race(1) == {"start", *names}
    before = {name: (tmp_path / "five" / name / "done.json").read_text() for name in names}
    assert race(2) == {"start", *names, *(name.removesuffix("1") + "2" for name in names)}
    assert before == {name: (tmp_path / "five" / name / "done.json").read_text() for name in names}
    assert all(len(path.read_text().splitlines()) == 2 for path in (tmp_path / "five").glob("*.rows.jsonl"))


def test_more_supervised_training_takes_the_seconds_that_it_is_given(tmp_path: Path) -> None:
    warmup.run(tmp_path / "start", 1)
    spent = supervise(tmp_path / "more", tmp_path / "start" / "model", 1, seconds=0.1)
    done = json.loads((tmp_path / "more" / "done.json").read_text())
    assert done["steps"] == 10, "at least ten steps"
    assert supervise(tmp_path / "more", tmp_path / "start" / "model", 1, seconds=9.0) == pytest.approx(spent, abs=0.1)

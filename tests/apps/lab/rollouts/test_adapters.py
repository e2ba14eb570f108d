"""Records in other trainers' forms; `plait runs export`; traces as Mooncake rows."""

from __future__ import annotations

import importlib.util
import json
import math
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.journal.directory import entries
from plait.runtime.journal.tables import EventRow
from plait.runtime.plugins.loader import Plugins
from plait_research.rollouts.adapters import retokenised, trl_output, verl_fields, with_advantages
from plait_research.rollouts.advantages import grpo_advantages, weighed
from plait_research.rollouts.export import ExclusionCounts, ExportedRun, export, select, tokenizer_of, write_texts
from plait_research.rollouts.record import BadRecord, Record, WeightsSegment
from plait_research.rollouts.store import RolloutReader, read_rollouts
from tests.apps.lab.rollouts.letters import Letters

LETTERS = ["--worker", "tests.apps.lab.rollouts.letters:Letters", "--allow", "tests.apps.lab.rollouts.letters:Letters"]
FORK = Record(
    rollout="3/1", group="3", branch=1, index=1, of=2, parent=0, fork=2, tokens=(1, 2, 3, 4, 5, 6, 7),
    mask=(0, 0, 0, 1, 0, 1, 0), logprobs=(0.0, 0.0, 0.0, -0.5, 0.0, -0.25, 0.0),
    segments=(
        WeightsSegment(start=3, end=4, policy=4, temperature=1.0, role="thread"),
        WeightsSegment(start=5, end=6, policy=5, temperature=1.0, role="join"),
    ),
    reward=1.0,
)  # fmt: skip
ALONE = FORK.model_copy(update={"of": 1, "index": 0, "parent": None, "fork": 0})
"""The only sequence of its rollout."""


def test_verl_gets_what_was_read_first_as_the_prompt() -> None:
    fields = verl_fields(ALONE)
    assert (fields["prompt_ids"], fields["response_ids"]) == ([1, 2, 3], [4, 5, 6])
    assert (fields["response_mask"], fields["response_logprobs"]) == ([1, 0, 1], [-0.5, 0.0, -0.25])
    assert fields["reward_score"] == 1.0
    assert fields["extra_fields"]["policies"] == [[3, 4, 4], [5, 6, 5]]
    assert "reward_score" not in verl_fields(ALONE.model_copy(update={"reward": float("nan")}))


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_verls_own_class_takes_the_fields() -> None:
    from verl.experimental.agent_loop.agent_loop import (  # pyright: ignore[reportMissingImports]
        AgentLoopMetrics,
        AgentLoopOutput,
    )

    made: Any = AgentLoopOutput(metrics=AgentLoopMetrics(), **verl_fields(ALONE))
    assert made.as_dict()["rm_scores"].tolist() == [0.0, 0.0, 1.0]


def test_trl_gets_lists_of_the_same_lengths() -> None:
    out = trl_output([ALONE, ALONE])
    assert {"prompt_ids", "completion_ids", "logprobs", "env_mask"} <= out.keys()
    for ids, scores, mask in zip(out["completion_ids"], out["logprobs"], out["env_mask"], strict=True):
        assert len(ids) == len(scores) == len(mask)
    with pytest.raises(BadRecord, match="no log-probabilities"):
        trl_output([ALONE.model_copy(update={"logprobs": ()})])
    with pytest.raises(BadRecord, match="generated nothing"):
        trl_output([Record(rollout="1/0", group="1", tokens=(1,), mask=(0,))])


def test_a_record_that_does_not_retokenise_to_itself_is_refused() -> None:
    tokenizer = tokenizer_of(
        Path("packages/plait-models/plait_models/models/countdown") if Path("orchestrator").is_dir() else MODEL
    )
    check = retokenised(tokenizer)
    ids = tuple(tokenizer.encode("<child> T24 11 7 5 <go>").ids)
    good = Record(rollout="1/0", group="1", tokens=ids, mask=(0,) * len(ids))
    assert check(good) == ""
    unknown = good.model_copy(update={"tokens": (*ids[:-1], 10_000)})
    assert "re-tokenise" in check(unknown)


MODEL = Path(__file__).parents[4] / "packages" / "plait-models" / "plait_models" / "models" / "countdown"


@pytest.fixture
def journals(plait: Any, tmp_path: Path) -> Path:
    """Runs of several samples each; some answers are right."""
    folder = tmp_path / "journals"
    for n in range(3):
        done = plait(
            "run",
            f"Question {n}?",
            "--planner",
            "sample:n=3,answer.temperature=1",
            *LETTERS,
            "--journal",
            folder,
            "--json",
        )
        assert done.code == 0, done.err
    return folder


def test_runs_are_exported_with_tokens_and_as_text(plait: Any, tmp_path: Path, journals: Path) -> None:
    done = plait("runs", "export", "--from", journals, "--out", tmp_path / "data.jsonl", "--json")
    assert done.code == 0, done.err
    assert (done.json["runs"], done.json["kept"], done.json["rows"]) == (3, 3, 9)
    assert len(list(read_rollouts(tmp_path / "data.jsonl"))) == 3
    assert len(RolloutReader(tmp_path / "data.jsonl", supervised=True).take(9)) == 3, (
        "for supervised training no reward is needed"
    )
    texts = tmp_path / "texts.jsonl"
    done = plait("runs", "export", "--from", journals, "--out", texts, "--format", "text", "--json")
    rows = [json.loads(line) for line in texts.read_text().splitlines()]
    assert len(rows) == 9
    assert all("Question" in row["prompt"] and "answer: " in row["completion"] for row in rows)


async def test_a_journal_of_many_runs_is_replayed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "all.plait"
    async with AsyncOrchestrator(workers=[Letters()], journal=str(journal)) as orchestrator:
        for n in range(12):
            await orchestrator.run(f"Question {n}?", planner="sample:n=2,answer.temperature=1")
    read: list[int] = []
    load = EventRow.load
    monkeypatch.setattr(EventRow, "load", lambda row: (read.append(row.seq), load(row))[1])
    left = ExclusionCounts()
    found = list(export(entries(journal), Plugins(), left))
    assert (len(found), left.why) == (12, {})
    assert {each.run.request.text for each in found} == {f"Question {n}?" for n in range(12)}
    assert len(read) == len(set(read)), "an event was replayed for more than one run"


def test_redacted_texts_are_not_in_the_file(plait: Any, tmp_path: Path, journals: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    plait("runs", "export", "--from", journals, "--out", texts, "--format", "text", "--no-texts", "--json")
    assert "Question" not in texts.read_text() and "characters]" in texts.read_text()
    assert plait("runs", "export", "--from", journals, "--out", tmp_path / "x", "--no-texts", "--json").code == 2


def test_filters_keep_the_cheapest_of_answers_that_mean_the_same(plait: Any, tmp_path: Path, journals: Path) -> None:
    for _ in range(2):
        plait(
            "run",
            "Question 0?",
            "--planner",
            "sample:n=5,answer.temperature=1",
            *LETTERS,
            "--journal",
            journals,
            "--json",
        )
    done = plait(
        "runs",
        "export",
        "--from",
        journals,
        "--out",
        tmp_path / "d.jsonl",
        "--select",
        "distinct=true,cheapest=1",
        "--json",
    )
    assert (done.json["runs"], done.json["kept"]) == (5, 3)
    kept = list(read_rollouts(tmp_path / "d.jsonl"))
    assert all(len(each) == 3 for each in kept), "runs of three samples are cheaper than those of five"
    none = plait(
        "runs", "export", "--from", journals, "--out", tmp_path / "e.jsonl", "--select", "verified=true", "--json"
    )
    assert none.json["left"] == {"not verified": 5}


def test_runs_wait_for_the_choice_on_the_disk(tmp_path: Path, journals: Path) -> None:
    (one, *_) = export(entries(journals), Plugins(), ExclusionCounts())

    def large() -> Iterator[ExportedRun]:
        for n in range(100):
            request = one.run.request.model_copy(update={"text": f"{n % 2}" + chr(97 + n % 26) * 200_000})
            yield replace(one, run=replace(one.run, id=f"r{n:02}", request=request), tokens=100 - n)

    tracemalloc.start()
    with select(large(), ExclusionCounts(), most=2) as chosen:
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert held < 5e6, "20 MB of texts"
        told = [(each.group, each.run.id) for each in chosen]
        assert len(chosen) == len(told) == 52 and told[:2] == [(0, "r78"), (0, "r52")], "the cheapest of each question"
        assert [group for group, _ in told] == [n // 2 for n in range(52)]
        assert all(each.run.attempts == one.run.attempts and each.right == one.right for each in chosen)
        assert write_texts(chosen, tmp_path / "t.jsonl", ExclusionCounts()) == 52 * len(one.run.attempts)


def test_a_choice_that_fails_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[Any] = []
    real = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: files.append(real()) or files[-1])

    def broken() -> Iterator[ExportedRun]:
        raise OSError("the disk is gone")
        yield

    with pytest.raises(OSError, match="the disk is gone"):
        select(broken(), ExclusionCounts())
    assert [file.closed for file in files] == [True]


def test_mooncake_rows_tell_who_waited_for_whom(plait: Any, tmp_path: Path, journals: Path) -> None:
    out = tmp_path / "m.jsonl"
    assert plait("runs", "export", "--from", journals, "--format", "mooncake", "--out", out).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [row for row in rows if row["session_id"] == rows[0]["session_id"]]
    assert len(rows) == 3
    assert len({tuple(row["hash_ids"]) for row in rows}) == 1, "three samples of one prompt have one prefix"
    assert all(row["output_length"] > 0 and row["wait_for"] == [] for row in rows)
    assert "Question" not in out.read_text()


def test_exported_runs_are_a_trace_that_the_simulator_plays(plait: Any, tmp_path: Path, journals: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = plait("runs", "export", "--from", journals, "--out", out, "--format", "mooncake", "--json")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert (done.code, done.json["rows"], done.json["kept"]) == (0, len(rows), len({row["session_id"] for row in rows}))
    played = plait("simulate", "--trace", out, "--cluster", "cache=10000", "--policy", "fifo", "--json")
    figures = played.json["policies"]["fifo"]
    assert (figures["done"], figures["attempts"]) == (done.json["kept"], len(rows))
    assert figures["prompt_tokens"] == sum(row["input_length"] for row in rows)
    refused = plait(
        "runs", "export", "--from", journals, "--out", out, "--format", "mooncake", "--select", "verified=true"
    )
    assert refused.code == 2 and "mooncake has all runs" in refused.err


def threaded(group: str, rewards: Sequence[float], sequences: Sequence[int]) -> list[list[Record]]:
    """A group of rollouts with so many sequences each."""
    return [
        [
            FORK.model_copy(
                update={"group": group, "rollout": f"{group}/{n}", "branch": n, "reward": reward, "index": index,
                        "of": count, "parent": 0 if index else None, "fork": 2 * bool(index)}
            )
            for index in range(count)
        ]
        for n, (reward, count) in enumerate(zip(rewards, sequences, strict=True))
    ]  # fmt: skip


def test_advantages_are_of_rollouts_however_many_sequences_they_have() -> None:
    rollouts = threaded("g", [1.0, 1.0, 0.0, 0.0], [9, 9, 17, 17])
    made = [record for rollout in weighed(rollouts) for record in rollout]
    assert len(made) == 52
    assert {(record.reward, round(record.advantage or 0.0, 3)) for record in made} == {(1.0, 0.866), (0.0, -0.866)}
    alone = grpo_advantages(record for record in made if record.rollout == "g/0")
    assert alone == {"g/0": pytest.approx(1.0, abs=1e-5)}
    lost = [made[0].model_copy(update={"reward": math.nan, "rollout": "g/9"})]
    assert weighed([*rollouts, lost])[-1][0].advantage is None, "without a reward there is no advantage"


def test_a_thread_with_a_reward_of_its_own_is_compared_with_those_of_its_prompt() -> None:
    one, two = threaded("g", [1.0, 0.0], [3, 3])
    one[1] = one[1].model_copy(update={"own": 1.0})
    two[1] = two[1].model_copy(update={"own": 0.0})
    other = (9, 9, 9, *FORK.tokens[3:])
    one[2], two[2] = (rollout[2].model_copy(update={"own": 0.0, "tokens": other}) for rollout in (one, two))
    made = weighed([one, two], "thread")
    gains = [[record.token_advantages[3] for record in rollout] for rollout in made]
    whole = made[0][0].advantage
    assert gains[0][0] == whole == -gains[1][0], "parents keep the rollout's"
    assert gains[0][1] > 0 > gains[1][1], "of two threads with one prompt the one that hit was better"
    assert gains[0][2] == gains[1][2] < 0, "two that both failed are alike, and worse than the average thread"
    assert [record.advantage for record in made[0]] == [whole] * 3, "the rollout's stays beside it"
    threads = [gain for row in gains for gain in row[1:]]
    assert sum(gain * gain for gain in threads) / 4 == pytest.approx(1.0)
    assert {tuple(record.token_advantages[5] for record in rollout) for rollout in weighed([one, two])} == {
        (whole,) * 3, (-(whole or 0.0),) * 3,
    }  # fmt: skip


def test_verl_is_given_the_advantage_as_the_score_of_a_group_of_one() -> None:
    rollouts = threaded("g", [1.0, 0.0], [2, 5])
    with pytest.raises(BadRecord, match="2 sequences, and verl would take each for a rollout"):
        verl_fields(rollouts[0][0])
    made = [verl_fields(record) for rollout in weighed(rollouts) for record in rollout]
    uids = [fields["extra_fields"]["uid"] for fields in made]
    assert len(set(uids)) == 7, "each sequence is a group of its own"
    said = [fields["reward_score"] / (1 + 1e-6) for fields in made]  # what verl makes of who is alone in its group
    assert said == pytest.approx([0.70710578] * 2 + [-0.70710578] * 5, abs=1e-6)
    assert [fields["extra_fields"]["reward"] for fields in made] == [1.0] * 2 + [0.0] * 5
    mixed = weighed(rollouts)[0][0]
    segments = (mixed.segments[0].model_copy(update={"advantage": 0.5}), mixed.segments[1])
    with pytest.raises(BadRecord, match="several advantages"):
        verl_fields(mixed.model_copy(update={"segments": segments}))


@pytest.mark.parametrize("adapter", [verl_fields, lambda record, **more: trl_output([record], **more)])
def test_adapters_refuse_what_the_trainer_would_misread(adapter: Any) -> None:
    def drawn(**how: Any) -> Record:
        return ALONE.model_copy(update={"segments": tuple(each.model_copy(update=how) for each in ALONE.segments)})

    with pytest.raises(BadRecord, match=r"at temperature 0\.6, and the trainer has 1"):
        adapter(drawn(temperature=0.6))
    assert adapter(drawn(temperature=0.6), temperature=0.6)
    with pytest.raises(BadRecord, match="at an unknown temperature"):
        adapter(drawn(temperature=None))
    for how, name in (({"top_p": 0.9}, "top_p"), ({"form": "json"}, "json"), ({"others": ("top_k",)}, "top_k")):
        with pytest.raises(BadRecord, match=f"drawn with {name}"):
            adapter(drawn(**how))
        assert adapter(drawn(**how), narrowed=True)


def test_trl_is_refused_groups_that_it_would_cut_elsewhere() -> None:
    def group(name: str, count: int) -> list[Record]:
        return [ALONE.model_copy(update={"group": name, "rollout": f"{name}/{n}"}) for n in range(count)]

    assert len(trl_output([*group("a", 2), *group("b", 2)])["prompt_ids"]) == 4
    with pytest.raises(BadRecord, match=r"different numbers of rollouts \(a: 3, b: 1"):
        trl_output([*group("a", 3), *group("b", 1)])
    with pytest.raises(BadRecord, match="do not stand together"):
        trl_output([*group("a", 2), *group("b", 2), *group("a", 2)])
    with pytest.raises(BadRecord, match="2 sequences, and TRL would take each for a rollout"):
        trl_output(threaded("g", [1.0], [2])[0])
    with pytest.raises(BadRecord, match="a TRL without masks trains on them"):
        trl_output([ALONE], masks=False)


def test_trl_gets_the_advantages_of_threaded_rollouts_and_rows_that_train_nothing() -> None:
    made = [record for rollout in weighed(threaded("g", [1.0, 0.0], [2, 5])) for record in rollout]
    out = trl_output(made, rows=8)
    assert {len(values) for values in out.values()} == {8}
    assert [row[0] for row in out["advantage"]] == pytest.approx([0.70710578] * 2 + [-0.70710578] * 5 + [0.0], abs=1e-6)
    assert [row[1] for row in out["advantage"][:7]] == [0.0] * 7, "what the model did not write has none"
    assert out["env_mask"][7] == [0]
    with pytest.raises(BadRecord, match="7 sequences do not go into 6 rows"):
        trl_output(made, rows=6)


def test_a_trainer_with_advantages_takes_them_in_the_place_of_its_own() -> None:
    import torch

    class Theirs:
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            return {"advantages": torch.full((len(inputs),), 7.0), "completion_mask": torch.ones(len(inputs), 3)}

    made = with_advantages(Theirs)()._generate_and_score_completions(
        [{"advantage": [0.5, 0.25]}, {"advantage": [-1.0]}]
    )
    assert made["advantages"].tolist() == [[0.5, 0.25, 0.0], [-1.0, 0.0, 0.0]]

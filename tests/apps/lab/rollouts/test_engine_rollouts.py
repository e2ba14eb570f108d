"""Rollouts of the bundled model on a real engine: the log-probabilities are the model's, also after new weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import Stopper
from plait.core.ops import ModelCall, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.sampling import Sampling
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog
from plait.workers.engine import Engine
from plait_bench.tasks.countdown import Countdown
from plait_research.rollouts.producer import Producer, Todo, sampled
from plait_research.rollouts.record import Record, records
from plait_research.rollouts.rewards import reward_of
from training import export
from training.model import Llama
from training.trades import TRADES

from .test_command import check, killed_until_done

MODEL = Path("packages/plait-models/plait_models/models/countdown").resolve()


@torch.inference_mode()
def gap(model: Llama, record: Record) -> float:
    """The largest difference between a record's log-probabilities and the model's at the same temperature."""
    ids = torch.tensor([record.tokens])
    assert record.temperature
    likely = (model.logits(model.hidden(ids, torch.float32), torch.float32)[0] / record.temperature).log_softmax(-1)
    scored = likely[:-1].gather(1, ids[0, 1:, None])[:, 0]
    wanted = torch.tensor(record.mask[1:], dtype=torch.bool)
    return float((scored - torch.tensor(record.logprobs[1:]))[wanted].abs().max())


async def _drawn(orchestrator: AsyncOrchestrator, log: RunLog, sampling: Sampling, **extra: Any) -> list[Record]:
    """One call of the model as records."""
    op = ModelCall(
        prompt=(Text(text="<child> T24 11 7 5 <go>"),), sampling=sampling.model_copy(update={"extra_body": extra})
    )
    answer = await orchestrator.run(plan=Plan(steps=(Step(name="a", op=op),), output="a"))
    run = log.pop(answer.run)
    assert run is not None
    return records(run, "g", 0, 1.0)


@pytest.mark.engine
@pytest.mark.own_engine
async def test_scoring_the_ids_again_gives_the_same_logprobs(tmp_path: Path) -> None:
    model = export.load(MODEL)
    workers, (sampler,) = sampled([Engine(MODEL, dtype="float32", slots=32, processed_logprobs=True)])
    producer, cool = (
        Producer(
            Request.of(
                {
                    "task": "countdown",
                    "planner": f"threads:n=3,answer.temperature={at},part.temperature={at},stop_on_verified=false,"
                    f"early=false",
                }
            ),
            reward_of("verified"),
        )
        for at in (1, 0.6)
    )
    orchestrator = AsyncOrchestrator(workers=workers, journal="off")
    orchestrator.watch(producer.log.take)
    orchestrator.watch(cool.log.take)
    stopper = Stopper(asyncio.get_running_loop())
    made: list[list[Record]] = []
    async with orchestrator:
        first = [Todo(str(n), 0, DatasetQuestion(Countdown(text=f"{3 + n} 5 7 11 -> 24"))) for n in range(4)]
        await producer.make(orchestrator, first, lambda rollout: made.append(list(rollout)), stopper)
        at_less: list[list[Record]] = []
        await cool.make(orchestrator, first, lambda rollout: at_less.append(list(rollout)), stopper)
        (narrow,) = await _drawn(orchestrator, cool.log, Sampling(max_tokens=12, temperature=2.0, top_p=0.3, seed=3))
        (held,) = await _drawn(
            orchestrator, cool.log, Sampling(max_tokens=12, temperature=1.0, seed=3), allowed_token_ids=[40, 41, 42]
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        export.export(model, tmp_path / "new", {}, TRADES["countdown"])
        changed = export.load(tmp_path / "new")
        assert await sampler.update(tmp_path / "new") == 1
        await producer.make(
            orchestrator, [Todo("new", 0, first[0].question)], lambda rollout: made.append(list(rollout)), stopper
        )
    old = export.load(MODEL)
    assert [each[0].reward for each in made[:4]] != [None] * 4
    forked = [record for rollout in made for record in rollout if record.parent is not None]
    assert forked and all(record.fork > 0 for record in forked), "threads continue their parent's context"
    for rollout in made:
        weights = old if rollout[0].group != "new" else changed
        assert {version for record in rollout for version in record.versions} == {int(rollout[0].group == "new")}
        assert max(gap(weights, record) for record in rollout) < 1e-3
    assert {record.temperature for rollout in at_less for record in rollout} == {0.6}
    assert max(gap(old, record) for rollout in at_less for record in rollout) < 1e-3
    warm = [record.model_copy(update={"segments": made[0][0].segments}) for rollout in at_less for record in rollout]
    assert max(gap(old, record) for record in warm) > 0.1, "at temperature 1 they would be others"
    assert narrow.segments[0].top_p == 0.3 and held.segments[0].others == ("allowed_token_ids",)
    for record in (narrow, held):
        assert record.logprobs and gap(old, record) > 5e-3, "of a part of the vocabulary each token is likelier"
    assert gap(old, made[-1][0]) > 0.1, "the new weights are others"


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_kills_in_the_midst_of_generating_lose_and_double_nothing(tmp_path: Path) -> None:
    puzzles = [f"{3 + n % 11} {5 + n % 7} 7 11 -> {20 + n}" for n in range(50)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in puzzles))
    words = [
        "learn", "rollouts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out.jsonl"),
        "--collect", "branches=4",
        "--task", "countdown", "--planner", "threads:n=3,answer.temperature=1,part.temperature=1",
        "--worker", "engine", "--concurrency", "8", "--json",
    ]  # fmt: skip
    kills, seen = killed_until_done(words, tmp_path / "out.jsonl", 5, 11, soon=300.0, within=0.3, PLAIT_SLOTS="16")
    check(tmp_path / "out.jsonl", len(puzzles), 5, kills, seen)

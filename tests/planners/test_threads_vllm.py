"""The dialects of tags on real vLLM: a model writes them at random; contexts checked by token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from plait import AsyncOrchestrator, Plugin
from plait.apps.common.session import preflight
from plait.core.result import Result
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import Dialect, load
from plait.runtime.client.answer import Answer
from plait.runtime.client.parallelism import parallelism
from plait.workers.engine import Engine
from tests.planners.recording import Recording
from tests.planners.tagged_model import DIALECTS, build

pytestmark = [pytest.mark.engine, pytest.mark.own_engine, pytest.mark.asyncio(loop_scope="module")]

OPTIONS: dict[str, Any] = {
    "answer": {"temperature": 1.0, "max_tokens": 150},
    "part": {"temperature": 1.0, "max_tokens": 30}, "rounds": 3,
    "max_branches": 24, "n": 5,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tagged(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[AsyncOrchestrator, Recording, Path]]:
    """An orchestrator over one engine with the model of tags, and its worker."""
    folder = build(tmp_path_factory.mktemp("models") / "tagged")
    worker = Recording(Engine(str(folder), kv_cache_memory_bytes=64 << 20, threads=1))
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        yield orchestrator, worker, folder


class Reader:
    """Puts together what contexts should be from what the engine wrote, by the format's rules alone."""

    def __init__(self, table: Dialect, folder: Path, results: dict[str, Result]) -> None:
        self.table, self.results = table, results
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def put(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def below(self, leg: str) -> tuple[list[str], str | None]:
        """The threads that a leg spawned, and the leg after it."""
        inner = sorted(step for step in self.results if step.startswith(leg + "/"))
        children = [step for step in inner if "/" not in step[len(leg) + 1 :] and "round" not in step[len(leg) + 1 :]]
        base = re.sub(r"-?round-\d+$", "", re.split("[/:]", leg)[-1])
        later = [step for step in inner if re.fullmatch(rf"{base}-?round-\d+", step.rpartition("/")[2])]
        return children, min(later, key=lambda step: step.count("/"), default=None)

    def block(self, children: list[str], numbers: list[str]) -> list[int]:
        join = self.table.join
        out = self.put(join.head)
        for child, number in zip(children, numbers, strict=True):
            out += self.put(join.hit.partition("{text}")[0].replace("{item}", number))
            wrote = self.whole(child)
            out += wrote if wrote[-1:] == self.put(join.end) else wrote + self.put(join.close)
        return out + self.put(join.tail)

    def whole(self, leg: str) -> list[int]:
        """All that a thread wrote, what it spawned included."""
        children, later = self.below(leg)
        out = list(self.results[leg].token_ids)
        if later is not None:
            out += self.between(leg, children) + self.whole(later)
        return out

    def between(self, leg: str, children: list[str]) -> list[int]:
        if not children:
            return []
        text = self.results[leg].text
        numbers = ["" for _ in children]
        if self.table.item is not None:
            tag = self.table.item.partition(r"\s")[0]
            said = [piece.partition(":")[0].strip() for piece in text.rpartition(self.table.open)[2].split(tag)[1:]]
            numbers = [each for each in dict.fromkeys(said) if each.isdigit()][: len(children)]
        return self.block(children, numbers)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_joined_contexts_are_what_the_format_demands(
    tagged: tuple[AsyncOrchestrator, Recording, Path], dialect: str
) -> None:
    orchestrator, worker, folder = tagged
    table = load(dialect)
    assert preflight(Threads(dialect=dialect), str(folder)) == (
        "the model has no chat template, so questions are put to it as plain text: is it the instructed model?",
    )
    planner = Plugin(name="threads", options={**OPTIONS, "dialect": dialect})
    worker.results.clear()
    gate = asyncio.Semaphore(3)  # so that no step has more to prefill than the engine takes at once

    async def one(seed: int) -> Answer:
        async with gate:
            return await orchestrator.run(f"How many {seed}?", planner=planner, seed=seed)

    answers = await asyncio.gather(*(one(seed) for seed in range(24)))
    assert not [answer.failure for answer in answers if answer.status != "done"]
    reader = Reader(table, folder, worker.results)
    assert len(answers) == len({step.partition("/")[0] for step in worker.results})
    joined = nested = cut = 0
    for leg, result in worker.results.items():
        children, later = reader.below(leg)
        context = [*result.prompt_ids, *result.token_ids]
        for child in children:
            begins = list(worker.results[child].prompt_ids[: len(context)])
            assert begins == context, "a thread continues its parent's context"
            cut += worker.results[child].finish == "length"
        if later is None:
            continue
        want = context + reader.between(leg, children)
        assert list(worker.results[later].prompt_ids) == want, reader.tokenizer.decode(want, skip_special_tokens=False)
        joined += len(children) > 1
        nested += leg.rpartition("/")[2].startswith("child-")
    assert joined >= 3 and cut >= 1, "the model should have spawned, and some threads been cut off"
    assert nested or not table.nesting
    assert sum(answer.usage.cached for answer in answers) > 0
    figures = [parallelism(answer.report) for answer in answers]
    assert any(each.activated for each in figures) and all(each.longest <= each.total for each in figures)

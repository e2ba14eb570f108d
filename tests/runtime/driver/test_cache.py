"""The result cache: what counts as the same, that samples stay samples, and that nothing is counted twice."""

from __future__ import annotations

import itertools
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step, TextDelta, ToolCall, tool
from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.ops import Text, Tokens
from plait.core.result import Result, Usage
from plait.runtime.driver.result_cache import ResultCache, default_file, identity
from plait.workers.scripted import Reply, Scripted


def job(prompt: object = "p", step: str = "r:s", run: str = "r", **options: object) -> Job:
    given = {"max_tokens": options.pop("max_tokens", 9), "temperature": options.pop("temperature", 1.0)}
    return Job(attempt=1, run=run, step=step, op=ModelCall(prompt=prompt, sampling=Sampling(**given), **options))


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "c" / "results.sqlite")


def test_what_is_the_same_and_what_is_not(cache: ResultCache) -> None:
    asked = [
        ("m", job()),
        ("m2", job(run="b")),
        ("m", job("q", run="c")),
        ("m", job((Text(text="p"), Tokens(ids=(1,))), run="d")),
        ("m", job((Tokens(ids=(1,)),), run="e")),
        ("m", job((Tokens(ids=(1, 2)),), run="f")),
        ("m", job(temperature=0.5, run="g")),
        ("m", job(max_tokens=8, run="h")),
        ("m", job(chat=True, run="i")),
        ("m", job(step="r:other")),
    ]
    keys = [cache.key(model, each) for model, each in asked]
    assert None not in keys and len(set(keys)) == len(keys)
    assert cache.key("m", job()) == keys[0], "the same step that is tried again"
    assert cache.key("m", job(run="another")) == keys[0], "the first sample of another run"
    assert cache.key("m", job(stream=True, run="z")) == keys[0], "how it is told is no part of it"
    assert cache.key("m", Job(attempt=1, run="r", step="s", op=ToolCall(tool="f"))) is None
    assert cache.key("m", replace(job(), generated=(1, 2))) is None


def test_only_whole_results_are_kept(cache: ResultCache) -> None:
    for result in (Result(finish="cancelled"), Result(finish="error"), Result(partial=True)):
        cache.put("k", result)
    assert cache.get("k") is None
    whole = Result(value="é", token_ids=tuple(range(3000)), usage=Usage(prompt=5, completion=3), logprob=-0.5)
    cache.put("k", whole)
    found = cache.get("k")
    assert found == whole.model_copy(update={"usage": Usage(reused=3)})
    cache.put("k", found)
    assert cache.get("k").usage == Usage(reused=3), "reused again, not forgotten"
    assert (cache.hits, cache.misses) == (2, 1)
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600


async def test_samples_never_collapse_and_come_back_each_as_it_was(tmp_path: Path) -> None:
    numbers = itertools.count()

    def worker() -> Scripted:
        return Scripted([Reply(text=f"answer: {next(numbers)}", times=1) for _ in range(20)])

    same = tuple(Step(name=f"s{i}", op=ModelCall(prompt="same", sampling=Sampling(temperature=1.0))) for i in range(5))
    plan = Plan(steps=(*same, Step(name="all", op=Join(), needs=tuple(step.name for step in same))), output="all")
    said = []
    for _ in range(2):
        made = worker()
        async with AsyncOrchestrator(workers=[made], cache=tmp_path / "cache") as orchestrator:
            answer = await orchestrator.run(plan=plan)
            said.append((answer, made.counts["requests"]))
    (first, asked), (second, asked_again) = said
    assert len(set(first.value)) == 5, "five samples, five results"
    assert second.value == first.value
    assert (asked, asked_again) == (5, 0)
    assert first.usage.completion == 10 and first.usage.reused == 0
    assert (second.usage.completion, second.usage.prompt, second.usage.reused) == (0, 0, 10)
    assert second.total_tokens == second.critical_path_tokens == 0
    assert second.summary()["usage"]["reused"] == 10 and "reused" not in first.summary()["usage"]
    assert "10 taken from the result cache" in second.explain()


async def test_more_samples_than_are_kept_are_made(tmp_path: Path) -> None:
    counts = []
    for n in (3, 5):
        worker = Scripted([Reply(text="answer: 4")])
        async with AsyncOrchestrator(workers=[worker], cache=tmp_path / "cache") as orchestrator:
            answer = await orchestrator.run("q", planner="sample", n=n)
        counts.append((worker.counts["requests"], answer.usage.reused))
    assert counts == [(3, 0), (2, 6)]


async def test_a_cached_result_streams_and_expands_like_a_new_one(tmp_path: Path) -> None:
    script = [
        Reply(when="^Q:", text="1. look(1)\n2. look($1)\n3. join()<END_OF_PLAN>"),
        Reply(text="Thought: done.\nAction: Finish(3)"),
    ]

    @tool
    def look(n: int) -> int:
        """Look."""
        return n + 1

    answers = []
    for replies in (script, [Reply(text="this worker is not asked")]):
        async with AsyncOrchestrator(workers=[Scripted(replies)], tools=[look], cache=tmp_path / "c") as orchestrator:
            texts = []
            async for news in orchestrator.stream("Q: what?", planner="llmcompiler"):
                if isinstance(news, TextDelta):
                    texts.append(news.text)
            answers.append((news.answer.value, news.answer.status, "".join(texts)))
    assert answers[0] == answers[1]


async def test_it_is_off_by_default_and_failures_are_not_kept(tmp_path: Path) -> None:
    for expected in (1, 2):
        worker = Scripted([Reply(text="boom", finish="error")])
        async with AsyncOrchestrator(workers=[worker], cache=tmp_path / "c") as orchestrator:
            assert (await orchestrator.run("q")).status == "failed"
        assert worker.counts["requests"] == 1, expected
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="x")])]) as orchestrator:
        assert orchestrator.config.cache is None
        assert [(await orchestrator.run("q")).usage.reused for _ in range(2)] == [0, 0]


def test_a_cache_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    bad = tmp_path / "notes.txt"
    bad.write_text("dear diary " * 1000)
    for path in (bad, tmp_path, bad / "below"):
        with pytest.raises(ConfigError, match=r"result cache .* cannot be used"):
            ResultCache(path)
    assert bad.read_text().startswith("dear diary")


def test_a_damaged_entry_is_made_anew(cache: ResultCache) -> None:
    cache.put("k", Result(value="x"))
    cache._db.execute("UPDATE results SET result = ?", (b"\x00damaged",))
    assert cache.get("k") is None


def test_a_model_that_was_trained_again_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("a")
    worker = Scripted([Reply(text="x")])
    first = identity(str(folder), worker)
    assert identity(str(folder), worker) == first
    os.utime(folder / "weights", (1, 1))
    assert identity(str(folder), worker) != first
    assert identity("org/model", worker) != identity("org/model", worker, "http://localhost/v1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_file() == tmp_path / "plait" / "results.sqlite"


class Serves(Scripted):
    """Serves one model, and tells of its cache once it has started."""

    async def start(self) -> None:
        await super().start()
        self.models, self.cache_tokens, self.block = (self.name.upper(),), 4096, 16


async def test_what_a_worker_offers_is_still_told(tmp_path: Path) -> None:
    workers = [Serves([Reply(text=f"of {name}")], name=name) for name in ("a", "b")]
    names = [f"s{i}" for i in range(6)]
    steps = [Step(name=name, op=ModelCall(prompt="x", model="BA"[i % 2])) for i, name in enumerate(names)]
    plan = Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(names))), output="all")
    async with AsyncOrchestrator(workers=workers, cache=tmp_path / "c", journal="off") as orchestrator:
        await orchestrator.start()
        assert [(each.models, each.cache_tokens, each.block) for each in orchestrator._driver.workers[:2]] == [
            (("A",), 4096, 16),
            (("B",), 4096, 16),
        ]
        answer = await orchestrator.run(plan=plan)
    assert answer.value == ["of b", "of a"] * 3

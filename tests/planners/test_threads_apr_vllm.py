"""The dialect `apr` on real vLLM: a model that writes searches and calls at random; contexts checked by token.

What a context should be is put together here by the format's rules alone, from what the engine wrote.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from plait import AsyncOrchestrator, Plugin
from plait.core.result import Result
from plait.runtime.client.answer import Answer
from plait.runtime.client.parallelism import parallelism
from plait.workers.engine import Engine
from tests.planners.recording import Recording
from tests.planners.tagged_model import APR, build

pytestmark = [pytest.mark.engine, pytest.mark.own_engine, pytest.mark.asyncio(loop_scope="module")]

PUZZLE = "25 6 3 4 -> 39"
ROOT = "Moving to Node #0\nCurrent State: 39:[25, 6, 3, 4], Operations: []"
STATES = {
    f"0,{n}": f"Moving to Node #0,{n}\nCurrent State: 39:[{left}, 3, 4], Operations: ['25{op}6={left}']"
    for n, (op, left) in enumerate((("+", 31), ("-", 19), ("*", 150)))
}
CALL, WRONG, END = "<Calling Sub Searches>", "<Sub Searches>", "<End Calling Sub Searches>"
BLOCK = 32  # tokens of a block of the engine's cache
OPTIONS: dict[str, Any] = {
    "dialect": "apr",
    "answer": {"temperature": 1.0, "max_tokens": 200}, "part": {"temperature": 1.0, "max_tokens": 40},
    "rounds": 6,
}  # fmt: skip

Searching = tuple[AsyncOrchestrator, Recording, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def searching(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[AsyncOrchestrator, Recording, Any]]:
    """An orchestrator over one engine with the model of searches, its worker, and the tokenizer."""
    folder: Path = build(tmp_path_factory.mktemp("models") / "apr", language=APR)
    sizes = {"kv_cache_memory_bytes": 64 << 20, "engine_args": {"block_size": BLOCK}}
    worker = Recording(Engine(str(folder), threads=1, **sizes))
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        yield orchestrator, worker, Tokenizer.from_file(str(folder / "tokenizer.json"))


class Run:
    """One run as it was, and as the format would have it."""

    def __init__(self, answer: Answer, worker: Recording, tokenizer: Any, prefix: str, child_prefix: str) -> None:
        self.answer, self.tokenizer, self.prefix, self.child_prefix = answer, tokenizer, prefix, child_prefix
        self.rounds = {row.name: row.step for row in answer.report.steps if row.name.startswith("round")}
        self.results: dict[str, Result] = {
            row.step: worker.results[row.step] for row in answer.report.steps if row.kind == "think"
        }
        self.joins = self.goals = self.none = self.inside = self.corrected = 0
        self.parallel = 0  # generated tokens along the longest chain

    def put(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def said(self, ids: list[int]) -> str:
        return "".join(self.tokenizer.id_to_token(each) for each in ids)

    def before(self, context: list[int], mark: str) -> list[int]:
        """A context as far as the last `mark`, which may begin inside a token: what is left of that is put anew."""
        words = [self.tokenizer.id_to_token(each) for each in context]
        at = max(place for place, word in enumerate(words) if word.endswith(mark))
        rest = words[at].removesuffix(mark)
        self.inside += bool(rest)
        return context[:at] + (self.put(rest) if rest else [])

    def block(self, round: int, nodes: list[str], known: set[str]) -> str:
        """The answers to the calls of a round, which stand in their place."""
        text = "<Sub Searches>\n"
        longest = threads = 0
        for n, node in enumerate(nodes):
            child = self.children(round).get(n)
            goal = ""
            if node in known and threads < 10:
                threads += 1
                assert child is not None
                assert list(self.results[child].prompt_ids) == self.put(self.child_prefix + STATES[node])
                wrote = self.said(list(self.results[child].token_ids)).removesuffix("</s>")
                longest = max(longest, self.results[child].usage.completion)
                if wrote.count("Goal Reached") >= 2:
                    goal = "Goal Reached".join(wrote.split("Goal Reached")[-2:]).strip()
            else:
                assert child is None
            where = f"in Sub Search {n} at level 1 at Node #{node}"
            text += f"<Goal Reached {where}>\n{goal}\n" if goal else f"<No Solution {where}>\n"
            self.goals, self.none = self.goals + bool(goal), self.none + (not goal)
        self.parallel += longest
        return text + "<End Sub Searches>\n"

    def children(self, round: int) -> dict[int, str]:
        """The threads of a round, by their places in the call."""
        rows = [row for row in self.answer.report.steps if row.owner == self.rounds[f"round-{round}"]]
        return {int(row.name.removeprefix("child-")) - 1: row.step for row in rows if row.name.startswith("child")}

    def check(self) -> None:
        """Follow the parent from round to round."""
        context = self.put(self.prefix + ROOT)
        known: set[str] = set()
        held: list[int] | None = None  # the context before a call that the parent must not have written itself
        number = 1
        while True:
            result, onward = self.results[self.rounds[f"round-{number}"]], f"round-{number + 1}" in self.rounds
            assert list(result.prompt_ids) == context, self.said(context)
            if number > 1:
                last = self.results[self.rounds[f"round-{number - 1}"]]
                whole = [*last.prompt_ids, *last.token_ids]
                shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, context, strict=False)))
                shared = min(shared, len(whole) - 1, len(context) - 1)  # nothing is computed after the last token
                assert result.usage.cached >= shared // BLOCK * BLOCK, "what the parent knew is not prefilled again"
            self.parallel += result.usage.completion
            wrote = list(result.token_ids)
            text = self.said(wrote)
            known |= {node for node in STATES if f"Node #{node}: 39" in text}
            context = context + wrote
            if text.endswith(WRONG) and onward:
                held = self.before(context, WRONG)
                context = held + self.put(CALL)
                self.corrected += 1
            elif text.endswith(END) and onward:
                start = self.before(context, CALL) if held is None else held
                nodes = re.findall(r"level 1> Moving to Node #([\d,]+)", text.rpartition(CALL)[2])
                context, held = start + self.put(self.block(number, nodes, known)), None
                self.joins += 1
            else:
                assert not onward
                return
            number += 1


@pytest.mark.parametrize(
    ("prefix", "child_prefix"),
    [("", ""), ("Sub Call Budget: 3 ", ""), ("Token Budget: 512 ", "Token Budget: 512 ")],
    ids=["no budget", "threads", "tokens"],
)
async def test_the_join_stands_in_the_place_of_the_call(searching: Searching, prefix: str, child_prefix: str) -> None:
    orchestrator, worker, tokenizer = searching
    planner = Plugin(name="threads", options={
        **OPTIONS, "early": False,
        "answer": {**OPTIONS["answer"], "template": prefix + "{opening}"},
        "part": {**OPTIONS["part"], "template": child_prefix + "{header}"},
    })  # fmt: skip
    worker.results.clear()
    runs: list[Run] = []
    for seed in range(40):
        answer = await orchestrator.run(PUZZLE, task="plain", planner=planner, seed=seed)
        assert answer.status == "done", answer.failure
        run = Run(answer, worker, tokenizer, prefix, child_prefix)
        run.check()
        figures = parallelism(answer.report)
        assert figures.longest == run.parallel, "tokens along the longest chain: rounds, and the longest thread of each"
        assert figures.total == sum(each.usage.completion for each in run.results.values())
        runs.append(run)
    for name in ("joins", "goals", "none", "inside", "corrected"):
        assert sum(getattr(run, name) for run in runs) >= 3, f"the model should have written {name}"
    assert any(run.joins > 1 for run in runs), "and called again after a join"
    shared = [run for run in runs if parallelism(run.answer.report).activated]
    assert any(parallelism(run.answer.report).acceleration > 0 for run in shared)


async def test_the_first_goal_ends_the_other_searches(searching: Searching) -> None:
    orchestrator, worker, tokenizer = searching
    planner = Plugin(name="threads", options=OPTIONS)
    worker.results.clear()
    ended = 0
    for seed in range(40):
        answer = await orchestrator.run(PUZZLE, task="plain", planner=planner, seed=seed)
        rows = answer.report.steps
        assert answer.status == "done", answer.failure
        for join in (row for row in rows if row.kind == "join" and row.name.startswith("join-")):
            states = [row.state for row in rows if row.step in join.needs]
            reached = [
                row.name
                for row in rows
                if row.step in join.needs and row.state == "done"
                and (result := worker.results.get(row.step)) and result.text.count("Goal Reached") >= 2
            ]  # fmt: skip
            assert set(states) <= {"done", "cancelled"}
            assert reached or "cancelled" not in states, "only a goal ends the others"
            ended += states.count("cancelled")
        text = "".join(tokenizer.id_to_token(each) for each in worker.results[rows[0].step].prompt_ids)
        assert text == ROOT
    assert ended, "some searches should have been ended by a sibling's goal"

"""The scorers through a search: which number each gives to a node, what it asks, and what becomes of bad answers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from plait.core.events import Job
from plait.core.flow import Answerable, Context
from plait.core.ops import ModelCall, Plugin, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.search import SearchTree
from plait.core.tools.tool import ToolSpec
from plait.planners.search.tree import Tree
from plait.planners.search.tree.growth import Growth
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = tuple(ToolSpec(name=name, parameters=TEXT) for name in ("tests", "reward", "perplexity"))
GROWN: list[Growth] = []


class Kept(Tree):
    """Keeps what its last run grew."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        GROWN[:] = [Growth(self, ctx, ctx.brief.task.render(self.style))]
        return await GROWN[0].answer()


class Model:
    """Writes `step NAME` at each node, with a log-probability that is the node's, and answers judges and tools."""

    def __init__(self, judge: Any = None, tool: Any = None, words: Mapping[str, str] | None = None) -> None:
        self._judge, self._tool, self._words = judge, tool, words or {}
        self.asked: list[tuple[str, str]] = []
        """Both texts of each comparison."""
        self.calls: list[dict[str, Any]] = []

    def __call__(self, job: Job, random: Random) -> Result | Failure:
        if isinstance(job.op, ToolCall):
            self.calls.append({"tool": job.op.tool, **job.op.args})
            said = self._tool(str(job.op.args["text"]))
            return said if isinstance(said, Failure) else Result(value=said)
        assert isinstance(job.op, ModelCall)
        prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
        shown = re.search(r"\nA:\n(.*)\n\nB:\n(.*)\n\nWhich", prompt, re.DOTALL)
        if shown is not None:
            self.asked.append((shown[1].strip(), shown[2].strip()))
            return Result(value=self._judge(*self.asked[-1]), usage=Usage(completion=1))
        name = job.step.rpartition("/")[2].partition(":")[0]
        tokens, logprob = logprob_of(name)
        text = self._words.get(name, f"step {name}") + "\n"
        return Result(value=text, usage=Usage(completion=tokens), logprob=logprob if job.op.sampling.logprobs else None)


def logprob_of(name: str) -> tuple[int, float]:
    """Return a node's tokens and their mean log-probability."""
    number = int(name.rpartition(".")[2])
    return 3 * number, -0.25 * number


def grown(model: Model, scorer: str, depth: int = 2, width: int = 1, **options: Any) -> SearchTree:
    """Grow three children a node, two levels deep, and return the tree."""
    planner = Kept(
        search=Plugin(name="beam", options={"keep": 1, "branch": 3}), scorer=Plugin(name=scorer, options=options),
        depth=depth, max_branches=50, n=width,
    )  # fmt: skip
    hosts = [Host("host", slots=8)]
    simulate(Request(text="What?", seed=1), planner=planner, hosts=hosts, outcome=model, tools=TOOLS)
    return GROWN[0].tree


def scores(tree: SearchTree, depth: int = 1) -> dict[str, float | None]:
    return {node.name: node.score for node in tree.nodes if node.depth == depth}


def test_logprob_is_the_mean_probability_of_a_steps_tokens_or_of_the_paths() -> None:
    tree = grown(Model(), "logprob")
    assert scores(tree) == {f"n.{i}": pytest.approx(math.exp(-0.25 * i)) for i in (1, 2, 3)}
    below = scores(tree, 2)
    assert list(below) == ["n.1.1", "n.1.2", "n.1.3"] and below["n.1.3"] == pytest.approx(math.exp(-0.75))
    along = scores(grown(Model(), "logprob", over="path"), 2)
    # n.1 has 3 tokens at -0.25, n.1.3 has 9 at -0.75
    assert along["n.1.3"] == pytest.approx(math.exp((3 * -0.25 + 9 * -0.75) / 12))


def test_logprob_is_asked_of_the_worker_by_this_scorer_alone() -> None:
    asked: set[int] = set()

    class Told(Model):
        def __call__(self, job: Job, random: Random) -> Result | Failure:
            asked.add(job.op.sampling.logprobs if isinstance(job.op, ModelCall) else 0)
            return super().__call__(job, random)

    grown(Told(), "function")
    assert asked == {0}
    grown(Told(), "logprob")
    assert asked == {0, 1}


@pytest.mark.parametrize(
    ("said", "score"),
    [
        (0.25, 0.25),
        (True, 1.0),
        (1, 1.0),
        ({"passed": 3, "total": 4}, 0.75),
        ({"passed": 3, "total": 4, "why": "one failed"}, 0.75),
        (7.5, 1.0),
        (-2, 0.0),
        ("0.5", None),
        (None, None),
        ({"passed": 0, "total": 0}, None),
        ({"passed": "3", "total": 4}, None),
        ([0.5], None),
        (Failure(kind="ToolError", message="no compiler"), None),
    ],
)
def test_a_tools_number_is_the_score_and_anything_else_is_unknown(said: Any, score: float | None) -> None:
    model = Model(tool=lambda text: said)
    tree = grown(model, "tool", depth=1, tool="tests", args={"limit": 9})
    assert scores(tree) == dict.fromkeys(("n.1", "n.2", "n.3"), score)
    assert GROWN[0].counts["unknown"] == (3 if score is None else 0)
    assert [call["text"] for call in model.calls] == [f"step n.{i}\n" for i in (1, 2, 3)]
    assert all(call["limit"] == 9 and "question" not in call for call in model.calls)


def test_perplexity_is_of_the_step_behind_all_that_stands_before_it() -> None:
    model = Model(tool=lambda text: 0.5)
    tree = grown(model, "perplexity", depth=2)
    asked = {call["text"]: call["before"] for call in model.calls}
    assert asked["step n.1\n"] == "What?" and asked["step n.1.2\n"] == "What?step n.1\n"
    assert set(scores(tree).values()) == {0.5}
    model = Model(tool=lambda text: "much")
    assert set(scores(grown(model, "perplexity", depth=1)).values()) == {None}


def test_a_reward_model_is_given_the_question() -> None:
    model = Model(tool=lambda text: 0.5)
    tree = grown(model, "reward-model")
    assert {call["question"] for call in model.calls} == {"What?"} and scores(tree)["n.1"] == 0.5


def higher(first: str, second: str) -> str:
    """Judge that the text with the higher number is better, wherever it stands."""
    return "A" if first > second else "B"


def test_a_judge_compares_each_pair_in_both_orders() -> None:
    model = Model(judge=higher)
    tree = grown(model, "judge", depth=1)
    assert scores(tree) == {"n.1": 0.5, "n.2": 1.0, "n.3": 1.0}, "the first has no one to be compared with"
    texts = {i: f"step n.{i}" for i in (1, 2, 3)}
    assert sorted(model.asked) == sorted(
        pair for a, b in ((2, 1), (3, 1), (3, 2)) for pair in ((texts[a], texts[b]), (texts[b], texts[a]))
    )
    model = Model(judge=lambda first, second: "B" if first > second else "A")
    assert scores(grown(model, "judge", depth=1))["n.3"] == 0.0


@pytest.mark.parametrize("favourite", ["A", "B"])
def test_a_judge_that_favours_a_place_says_nothing(favourite: str) -> None:
    tree = grown(Model(judge=lambda first, second: favourite), "judge", depth=1)
    assert set(scores(tree).values()) == {0.5}


def test_a_judge_that_says_neither_in_one_order_is_not_believed_in_the_other() -> None:
    def judge(first: str, second: str) -> str:
        return "A" if first > second else "I cannot tell"

    assert scores(grown(Model(judge=judge), "judge", depth=1)) == {"n.1": 0.5, "n.2": None, "n.3": None}
    assert GROWN[0].counts["unknown"] == 2


def test_equal_states_are_scored_once_and_not_judged_against_one_another() -> None:
    words = {"n.1": "same", "n.2": "same", "n.3": "other"}
    model = Model(judge=higher, words=words)
    tree = grown(model, "judge", depth=1)
    kinds = {node.name: node.outcome for node in tree.nodes[1:]}
    assert kinds == {"n.1": "answer", "n.2": "merged", "n.3": "answer"}
    assert sorted(model.asked) == [("other", "same"), ("same", "other")]
    model = Model(tool=lambda text: 0.5, words=words)
    grown(model, "tool", depth=1, tool="tests")
    assert [call["text"] for call in model.calls] == ["same\n", "other\n"]


@pytest.mark.parametrize("scorer", ["logprob", "tool", "reward-model", "function"])
def test_scores_do_not_depend_on_how_many_nodes_are_in_flight(scorer: str) -> None:
    options: dict[str, Any] = {"name": "tests"} if scorer == "tool" else {}
    found = [
        scores(grown(Model(tool=lambda text: len(text) / 100), scorer, width=width, **options)) for width in (1, 8)
    ]
    assert found[0] == found[1]


def test_siblings_that_are_not_written_yet_are_not_compared_with() -> None:
    model = Model(judge=higher)
    grown(model, "judge", depth=1, width=3)
    assert model.asked and all(first and second for first, second in model.asked)


def test_braces_in_a_text_are_left_as_they_are() -> None:
    model = Model(judge=higher, words={"n.1": "{b} {question}", "n.2": "{a}"})
    grown(model, "judge", depth=1)
    assert ("{a}", "{b} {question}") in model.asked

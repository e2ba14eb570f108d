"""Planner `tree`: what becomes of nodes, budgets, tools and the grader, on scripted models and in virtual time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from plait import Budget, Orchestrator, tool
from plait.core.call_config import CallConfig
from plait.core.errors import FieldError
from plait.core.events import Job
from plait.core.flow import Context
from plait.core.interfaces import Policy
from plait.core.ops import ModelCall, Plugin, Text
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.search import Scorer, SearchNode, SearchTree
from plait.planners.search.tree import Tree
from plait.planners.search.tree.vote import choose
from plait.policies.schedule.placement import Affinity
from plait.policies.schedule.simple import Random as Anywhere
from plait.policies.score.scorers import Model
from plait.tasks.plain import Plain
from plait.workers.scripted import Reply, Scripted
from plait_bench.tasks.countdown import Countdown
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

SEARCHES = ["best-first", "stride", "beam", "dvts", "rebase", "ets", "mcts", "lats", "dfs", "particle"]
PUZZLE = "11 7 5 3 -> 24"
TASK = Plugin(name="countdown")


def steps_of(job: Job, random: Random) -> Result:
    """Propose a random exact step of a Countdown puzzle, of a few tokens."""
    from plait_bench.tasks.countdown import moves, remaining

    assert isinstance(job.op, ModelCall)
    prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
    shown = re.search(r"T(\d+) ([\d ]+) <go>(.*)", prompt, re.DOTALL)
    assert shown is not None
    if "failed" in shown[3]:
        return Result(value="Try a product.", usage=Usage(completion=4))
    done = [(int(a), op, int(b), int(c)) for a, op, b, c in re.findall(r"(\d+)([-+*/])(\d+)=(\d+);", shown[3])]
    left = remaining(tuple(int(word) for word in shown[2].split()), done)
    assert left is not None
    seeded = Random(f"{job.op.sampling.seed}")
    a, op, b, c = seeded.choice(moves(left))
    return Result(value=f"{a}{op}{b}={c};", usage=Usage(completion=4 + random.randrange(20)))


def searched(seed: int = 0, slots: int = 8, rate: float = 50.0, **options: Any) -> Any:
    planner = Tree.model_validate({"depth": 3, "step": {"stop": ";"}, "max_branches": 60, "n": 8} | options)
    request = Request(text=PUZZLE, task=TASK, seed=3)
    host = Host("host", slots=slots, decode_rate=rate)
    return simulate(request, planner=planner, hosts=[host], outcome=steps_of, seed=seed)


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_solves_a_puzzle_with_an_exact_scorer(search: str) -> None:
    # Depth-first search chooses by order and not by score: its first answer need not be right.
    given = Plugin(name="dfs", options={"branch": 9, "back": 1, "diverse": False}) if search == "dfs" else search
    done = searched(search=given, max_branches=300, quorum=0)
    assert done.status == "done", done.failure
    assert Countdown(text=PUZZLE).verify(done.result.value)


class _Blind(Countdown):
    """A puzzle whose grader must not be asked."""

    def verify(self, answer: Any) -> bool:
        raise AssertionError("the search asked the grader")


@pytest.mark.parametrize("search", SEARCHES)
def test_no_search_asks_the_grader(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Countdown, "verify", _Blind.verify)
    assert searched(search=search).status == "done"


def test_the_steps_and_seeds_do_not_depend_on_which_node_ends_first() -> None:
    """The same path has the same seed whatever the speed of the machine: what differs is only which nodes there are."""
    seen: dict[str, int | None] = {}
    for seed, slots in ((1, 1), (2, 3), (3, 16)):

        def outcome(job: Job, random: Random) -> Result:
            assert isinstance(job.op, ModelCall)
            name = job.step.rpartition("/")[2]
            assert seen.setdefault(name, job.op.sampling.seed) == job.op.sampling.seed
            return steps_of(job, random)

        planner = Tree(search=Plugin(name="best-first"), depth=3, step=CallConfig(stop=";"), max_branches=40)
        simulate(
            Request(text=PUZZLE, task=TASK, seed=3), planner=planner, hosts=[Host("h", slots=slots)], outcome=outcome,
            seed=seed,
        )  # fmt: skip
    assert len(set(seen.values())) == len(seen) > 20


def test_equal_states_are_one_node_and_are_explored_once() -> None:
    done = searched(search="stride", max_branches=100)
    merged = re.search(r"(\d+) merged", done.result.why)
    assert merged is not None and int(merged[1]) > 5


def plain(model: Scripted, budget: Budget | None = None, tools: Any = (), **options: Any) -> Any:
    with Orchestrator(workers=[model], tools=list(tools), journal=None) as orchestrator:
        return orchestrator.run("Question?\n", planner=Tree.model_validate(options), budget=budget or Budget())


def two_steps(**more: Any) -> Scripted:
    return Scripted(
        [
            Reply(when=r"Question\?\n.*good\n\Z", text="answer 42"),
            Reply(when=r"Question\?\n.*bad\n\Z", text="answer 41"),
            Reply(when="Question", text="good\n", times=1),
            Reply(when="Question", text="bad\n", **more),
        ]
    )


class _Good(Scorer):
    word: str = "good"

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        return 0.9 if self.word in node.text else 0.2


class _Even(Scorer):
    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        return (node.index % 7) / 7


class _Raising(Scorer):
    how: str = "raise"

    async def score(self, ctx: Context, question: str, node: SearchNode) -> Any:
        match self.how:
            case "raise":
                raise RuntimeError("no score today")
            case "nan":
                return float("nan")
            case "text":
                return "very good"
            case _:
                return 10**400


def test_the_answer_with_most_score_wins() -> None:
    answer = plain(two_steps(), scorer=_Good(), max_branches=40, search="beam")
    assert answer.answer == "good\nanswer 42"
    assert "2 different" in answer.why


@pytest.mark.parametrize("how", ["raise", "nan", "text", "huge"])
def test_a_scorer_that_cannot_tell_leaves_the_score_unknown_and_is_counted(how: str) -> None:
    answer = plain(two_steps(), scorer=_Raising(how=how), max_branches=8)
    assert answer.status == "done", answer.failure
    assert re.search(r"\d+ unknown", answer.why)


def test_a_model_scores_by_the_expectation_of_its_marks() -> None:
    marks = {"0": 0.2, "1": 0.2, "2": 0.4}
    model = Scripted(
        [
            Reply(when=r"good[^\0]*How promising", labels=marks),
            Reply(when="How promising", labels={"0": 0.8, "1": 0.1}),
            *two_steps().script.replies,
        ]
    )
    scored: list[float] = []

    class Kept(Model):
        async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
            score = await super().score(ctx, question, node)
            scored.append(score or 0.0)
            return score

    answer = plain(model, scorer=Kept(labels=("0", "1", "2")), max_branches=40, search="beam")
    assert answer.answer == "good\nanswer 42", answer.failure
    assert {round(each, 6) for each in scored} == {round((0.2 * 0.5 + 0.4) / 0.8, 6), round(0.05 / 0.9, 6)}


def test_a_model_that_cannot_tell_probabilities_is_said_in_words() -> None:
    answer = plain(two_steps(), scorer=Plugin(name="model"), max_branches=8)
    assert answer.status == "done" and "unknown" in answer.why
    assert "no probability of a label" in answer.why


@pytest.mark.parametrize("wrong", [{"labels": ("a",)}, {"labels": ("a", "b"), "values": (1.0,)}, {"values": (2.0,)}])
def test_marks_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        Model(**wrong)


def test_all_nodes_dead_is_a_failure_in_words() -> None:
    model = Scripted([Reply(text="and so on\n", finish="stop")])
    answer = plain(
        model,
        depth=3,
        max_branches=20,
        scorer=_Good(),
        until="never",
        search="dfs",
        quorum=0,
        step=CallConfig(stop="\n"),
    )
    assert answer.status == "done"  # depth reached: the text is the answer of the plain task
    failing = Scripted([Reply(text="broken", finish="error")])
    answer = plain(failing, max_branches=6, scorer=_Good())
    assert answer.status == "failed"
    assert "found no answer in" in str(answer.failure) and "failed" in str(answer.failure)


def test_the_end_of_the_budget_gives_what_was_found() -> None:
    # A slow second branch: the budget ends while it is written.
    answer = plain(
        two_steps(tokens_per_second=200),
        Budget(tokens=14),
        scorer=_Good(),
        max_branches=64,
        step=CallConfig(max_tokens=4),
        n=2,
    )
    assert answer.usage.completion <= 14 + 8
    assert answer.answer is not None, answer.failure
    assert "budget" in answer.why


def test_a_list_of_steps_makes_many_children_by_one_call() -> None:
    model = Scripted(
        [
            Reply(when=r"42\n\nWrite up to", text="done: 42\n"),
            Reply(when="Write up to", text="take 41\ntake 42\n\ntake 42\n"),
        ]
    )
    answer = plain(model, search="tot", depth=2, until="done", scorer=_Good(word="done"), max_branches=10)
    assert answer.answer.endswith("done: 42"), (answer.answer, answer.why, answer.failure)
    assert model.counts["requests"] < 5


def maze(model_parallel: int, effects: list[str]) -> tuple[Any, list[str]]:
    looked: list[str] = []

    @tool
    def look(door: str) -> str:
        """Look behind a door."""
        looked.append(door)
        return "a wall" if door != "C" else "the hall"

    @tool(side_effects=True)
    def walk(door: str) -> str:
        """Go through a door."""
        effects.append(door)
        return "You are out."

    def call(name: str, door: str) -> str:
        return f'<tool_call>{{"name": "{name}", "arguments": {{"door": "{door}"}}}}</tool_call>'

    model = Scripted(
        [
            Reply(when="You are out", text="out by C"),
            Reply(when=r"the hall</tool_response>\s*\Z", text=call("walk", "C")),
            Reply(when=r"a wall</tool_response>\s*\Z", text="give up"),
            Reply(when=r'"door": "B".*tried|tried here.*"door": "B"', text=call("look", "C")),
            Reply(when="tried here", text=call("look", "B")),
            Reply(when="Question", text=call("look", "A")),
        ]
    )
    search = Plugin(name="dfs", options={"parallel": model_parallel, "branch": 4, "back": 1})
    with Orchestrator(workers=[model], tools=[look, walk], journal=None) as orchestrator:
        answer = orchestrator.run(
            "Question?\n",
            planner=Tree(
                search=search, step=CallConfig(stop=(), form="calls"), scorer=_Good(), until="out by", give_up="give up"
            ),
        )
    return answer, looked


def test_depth_first_over_tools_reads_once_and_acts_once() -> None:
    effects: list[str] = []
    answer, looked = maze(1, effects)
    assert answer.status == "done", answer.failure
    assert effects == ["C"]
    assert len(looked) == len(set(looked)), "a reading call is made once a run"
    assert "out by C" in answer.answer


@pytest.mark.parametrize("rule", ["last", "mean", "min", "product", "best", "count"])
def test_votes_over_answers(rule: Any) -> None:
    root = SearchNode("n")

    def answer(name: str, scores: list[float | None], value: str, tokens: int = 5) -> SearchNode:
        node = root
        for i, score in enumerate(scores):
            node = SearchNode(f"{name}.{i}", node, i + 1, 1, score=score, tokens=tokens)
        node.answer, node.outcome = value, "answer"
        return node

    task = Plain(text="q")
    a, b, c = answer("a", [0.9, 0.4], "x"), answer("b", [0.1, 0.3], "x"), answer("c", [0.2, 0.6], "y")
    found = choose([a, b, c], task, rule)
    assert found is not None
    assert found.value == {"last": "x", "mean": "x", "min": "x", "product": "x", "best": "y", "count": "x"}[rule]
    assert choose([], task, rule) is None
    alone = choose([answer("d", [None], "z")], task, rule)
    assert alone is not None and alone.value == "z"


def test_a_run_looks_through_its_nodes_a_fixed_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = {100: 0, 800: 0}

    class Counted(list[SearchNode]):
        def __iter__(self) -> Iterator[SearchNode]:
            passes[nodes] += 1
            return super().__iter__()

    def counted(self: SearchTree, random: Any, width: int) -> None:
        start(self, random, width)
        self.nodes = Counted(self.nodes)

    start = SearchTree.__init__
    monkeypatch.setattr(SearchTree, "__init__", counted)

    def step(job: Job, random: Random) -> Result:
        return Result(value=f"{job.step} takes a step\n", usage=Usage(completion=20))

    for nodes in passes:
        search = Plugin(name="stride", options={"branch": 40})
        planner = Tree(search=search, max_branches=nodes, n=16, scorer=_Raising(), depth=2, quorum=nodes)
        done = simulate(Request(text="What?"), planner=planner, hosts=[Host("h", slots=16)], outcome=step)
        assert done.result is not None and f"{nodes} nodes" in done.result.why, done.failure
    assert passes[800] == passes[100] <= 2


def test_a_thousand_nodes_compute_little_more_than_what_is_new() -> None:
    """Children continue their parents token for token: prompt tokens that no cache had, by those that nobody had."""

    def step(job: Job, random: Random) -> Result:
        return Result(value=f"{job.step} takes a step\n", usage=Usage(completion=20))

    planner = Tree(
        search=Plugin(name="stride", options={"branch": 3}), max_branches=1000, n=16, scorer=_Even(), depth=9
    )
    host = Host("h", slots=16, cache_tokens=200_000, block=1)
    request = Request(text="What is to be done? " * 40)
    done = simulate(request, planner=planner, hosts=[host], outcome=step)
    assert done.steps > 1000
    # An engine always computes at least the last token of a prompt.
    assert done.prompt_computed - done.steps <= 1.05 * done.prompt_unique


def test_on_two_engines_children_stay_with_their_parents() -> None:
    """What is read again where a child leaves its parent's engine, by the tree's unique prompt tokens, is small."""

    def step(job: Job, random: Random) -> Result:
        return Result(value=f"{job.step} takes a step\n", usage=Usage(completion=20))

    planner = Tree(
        search=Plugin(name="stride", options={"branch": 3}), max_branches=1000, n=16, scorer=_Even(), depth=9
    )
    hosts = [Host(name, slots=8, cache_tokens=200_000, block=1) for name in ("a", "b")]

    def moved(*policies: Policy) -> tuple[int, float]:
        done = simulate(
            Request(text="What is to be done? " * 40), planner=planner, hosts=hosts, outcome=step, policies=policies
        )
        thinks = {span.step.rpartition("/")[2]: span for span in done.spans if span.kind == "think"}
        parents = {name: thinks.get(name.rpartition(".")[0]) for name in thinks}
        unique = 200 + 20 * len({id(parent) for parent in parents.values() if parent is not None})
        left = sum(parent is not None and parent.host != thinks[name].host for name, parent in parents.items())
        return left, (done.prompt_computed - done.steps) / unique

    left, again = moved(Affinity())
    assert again <= 0.25
    assert left <= 50 and left <= moved(Anywhere())[0] / 2

"""The shape of plans: refusals in words, and every measure against a brute-force count on small random plans."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from plait.core import graph
from plait.core.errors import PlanError
from plait.core.ops import Call, Join, Ref, Sampling, Text, Think
from plait.core.plan import Plan, Step, needs, validate
from plait.core.request import Request
from plait.machine.plans import insert
from plait.machine.records import Run, Scope
from plait.runtime.plugins.loader import Plugins


def call(name: str, *needs: str, tool: str = "f") -> Step:
    return Step(name=name, op=Call(tool=tool), needs=needs)


def think(name: str, *needs: str, tokens: int = 10, after: str | None = None, expands: bool = False) -> Step:
    op = Think(prompt="go on", after=after, sampling=Sampling(max_tokens=tokens))
    return Step(name=name, op=op, needs=needs, expands=expands)


def join(name: str, *needs: str) -> Step:
    return Step(name=name, op=Join(), needs=needs)


def plan(*steps: Step, output: str | None = "out") -> Plan:
    return Plan(steps=steps, output=output)


def by_name(steps: dict[str, tuple[str, ...]], weights: dict[str, int], output: str) -> Plan:
    made = [think(name, *needs, tokens=weights[name]) for name, needs in steps.items()]
    return Plan(steps=tuple(made), output=output)


NAMES = "abcdefg"


@st.composite
def dags(draw: st.DrawFn) -> Plan:
    """Plans in any order of steps, every step of which leads to the last one of some topological order."""
    size = draw(st.integers(1, len(NAMES)))
    needs: dict[str, list[str]] = {name: [] for name in NAMES[:size]}
    for i, reader in enumerate(NAMES[:size]):
        needs[reader] = [name for name in NAMES[:i] if draw(st.booleans())]
    last = NAMES[size - 1]
    for name in NAMES[: size - 1]:
        if not any(name in deps for deps in needs.values()):
            needs[last].append(name)
    order = draw(st.permutations(NAMES[:size]))
    weights = {name: draw(st.integers(1, 9)) for name in order}
    return by_name({name: tuple(needs[name]) for name in order}, weights, last)


@st.composite
def digraphs(draw: st.DrawFn) -> Plan:
    """Any plan: with cycles and stray steps."""
    size = draw(st.integers(1, 5))
    names = NAMES[:size]
    edges = {a: tuple(b for b in names if b != a and draw(st.booleans())) for a in names}
    return by_name(edges, dict.fromkeys(names, 1), draw(st.sampled_from(names)))


def above(p: Plan) -> dict[str, set[str]]:
    """All steps that each step needs, directly or not, by repeated squaring of nothing cleverer than a loop."""
    steps = {step.name: set(step.needs) for step in p.steps}
    for _ in steps:
        steps = {name: deps.union(*(steps[dep] for dep in deps)) for name, deps in steps.items()}
    return steps


def chains(p: Plan, end: str) -> list[tuple[str, ...]]:
    deps = {step.name: step.needs for step in p.steps}
    return [(end,)] if not deps[end] else [(*chain, end) for dep in deps[end] for chain in chains(p, dep)]


# -- measures ----------------------------------------------------------------------------------------------------------


@given(dags())
def test_waves_hold_each_step_one_after_its_deepest_need(p: Plan) -> None:
    layers = graph.waves(p)
    depth = {name: max(len(chain) for chain in chains(p, name)) - 1 for name in (step.name for step in p.steps)}
    assert [sorted(layer) for layer in layers] == [
        sorted(name for name in depth if depth[name] == i) for i in range(max(depth.values()) + 1)
    ]
    place = [step.name for step in p.steps].index
    assert all(layer == sorted(layer, key=place) for layer in layers)


@given(dags())
def test_critical_path_is_the_heaviest_chain(p: Plan) -> None:
    weights = {step.name: step.token_cost() for step in p.steps}
    found = graph.critical_path(p)
    assert p.output is not None
    assert found.length == max(sum(weights[name] for name in chain) for chain in chains(p, p.output))
    assert found.names in chains(p, p.output)
    assert sum(weights[name] for name in found.names) == found.length


@given(digraphs())
def test_a_plan_is_refused_exactly_if_it_has_a_cycle_or_a_step_that_leads_nowhere(p: Plan) -> None:
    needed = above(p)
    cyclic = any(name in needed[name] for name in needed)
    stray = set(needed) - needed[p.output or ""] - {p.output}
    if not cyclic and not stray:
        validate(p)
        return
    with pytest.raises(PlanError) as caught:
        validate(p)
    assert ("cycle" in str(caught.value)) == cyclic
    if cyclic:
        named = str(caught.value).split(": ")[1].split(" needs ")
        deps = {step.name: step.needs for step in p.steps}
        assert named[0] == named[-1] and len(named) > 1
        assert all(b in deps[a] for a, b in pairwise(named))


@given(dags())
def test_what_is_valid_here_enters_a_machine(p: Plan) -> None:
    validate(p)
    run = Run("r", Request(), Plugins().task(Request().task, "text"))
    added = insert(p, Scope(run, None, None, "r:"), None, 0.0, Plugins().merge)
    assert max(node.upward_rank for node in added.nodes) == graph.critical_path(p).length


def test_weights_can_be_seconds() -> None:
    p = plan(call("a"), call("b"), join("out", "a", "b"))
    chain = graph.critical_path(p, weight=lambda step: {"a": 1.5, "b": 2.5}.get(step.name, 0.0))
    assert chain == graph.Chain(("b", "out"), 2.5)


def test_a_patch_may_need_what_is_not_in_it() -> None:
    patch = Plan(steps=(think("b", "outside", tokens=3), think("c", "b", tokens=4)))
    assert graph.waves(patch) == [["b"], ["c"]]
    assert graph.critical_path(patch) == graph.Chain(("b", "c"), 7.0)
    assert "outside" in graph.text(patch)


def test_thousands_of_steps_of_every_shape() -> None:
    n = 4_000
    wide = plan(*(call(f"s{i}") for i in range(n)), join("out", *(f"s{i}" for i in range(n))))
    deep = plan(*(call(f"s{i}", *([f"s{i - 1}"] if i else [])) for i in range(n)), join("out", f"s{n - 1}"))
    mesh = plan(
        *(call(f"s{i}", *(f"s{j}" for j in (i - 40, i - 41) if j >= 0)) for i in range(n)),
        join("out", *(f"s{i}" for i in range(n))),
    )
    for p, depth in ((wide, 2), (deep, n + 1), (mesh, 101)):
        validate(p, tools={"f"})
        assert len(graph.waves(p)) == depth
        assert graph.critical_path(p).length == depth - 1


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            plan(call("a", "b"), call("b", "c"), call("c", "a"), join("out", "a")),
            r"cycle: (\w) needs (\w) needs (\w) needs \1",
        ),
        (plan(call("search-1"), join("out", "serch-1")), r"'out' refers to 'serch-1'.*did you mean 'search-1'"),
        (
            plan(call("a"), join("out", "a", "zzz")),
            r"'out' refers to 'zzz', which is no step of the plan; there are a, out",
        ),
        (plan(call("out", "out")), "'out' refers to itself"),
        (plan(call("a"), call("b"), call("out")), r"step 'a' does not lead to the output 'out' \(nor do 1 more\)"),
        (plan(call("a"), output=None), "names no output"),
        (plan(call("answer"), output="answr"), "output 'answr' is not a step.*did you mean 'answer'"),
        (plan(), "no steps"),
        (plan(call("a"), think("out", after="a")), "'out' is `after` 'a', a call: only a think step has a context"),
        (plan(call("a"), join("j", "a"), think("out", after="j")), "a join: only a think step"),
        (plan(think("out", after="out")), "refers to itself"),
        (plan(call("out", tool="serch")), "'serch', which is not there; did you mean 'search'"),
        (plan(call("out", tool="xyz")), "'xyz', which is not there; there are f, fetch, search"),
    ],
)
def test_refusals_name_the_step_and_the_cause(refused: Plan, said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        validate(refused, tools=["search", "fetch", "f"])
    assert "\n" not in str(caught.value)


def test_references_of_every_kind_count_as_needs() -> None:
    p = plan(
        call("a"),
        think("b"),
        Step(name="c", op=Call(tool="f", args={"x": [{"$ref": "a"}], "y": {"$literal": {"$ref": "nobody"}}})),
        Step(name="d", op=Think(prompt=(Text(text="see "), Ref(step="c")), after="b")),
        join("out", "d"),
    )
    validate(p)
    assert graph.waves(p) == [["a", "b"], ["c"], ["d"], ["out"]]
    assert needs(p.steps[3]) == ("c", "b")


def test_a_join_that_expands_has_a_context() -> None:
    synthesis = Step(name="j", op=Join(), needs=("a",), expands=True)
    validate(plan(think("a"), synthesis, think("out", after="j")))


def test_without_a_set_of_tools_any_tool_will_do() -> None:
    validate(plan(call("out", tool="whatever")))
    with pytest.raises(PlanError, match="none was given"):
        validate(plan(call("out", tool="whatever")), tools=())


# -- pictures ----------------------------------------------------------------------------------------------------------

PICTURED = plan(
    think("parent", tokens=64, expands=True),
    Step(name="child-1", op=Think(prompt="x", after="parent"), label='says "no" <b>'),
    call("look", "parent", tool="search"),
    join("out", "child-1", "look"),
)


def test_mermaid_shows_kinds_continuations_and_escapes() -> None:
    lines = graph.mermaid(PICTURED).splitlines()
    assert lines[0] == "flowchart TD"
    assert '  s0("parent<br/>think &lt;= 64 tokens, expands")' in lines
    assert '  s1("child-1<br/>says &quot;no&quot; &lt;b&gt;<br/>think &lt;= 512 tokens after parent")' in lines
    assert '  s2[["look<br/>call search"]]' in lines
    assert '  s3{{"out<br/>join collect, all"}}' in lines
    assert [line.strip() for line in lines if ">" in line.split('"')[0]] == [
        "s0 ==> s1",
        "s0 --> s2",
        "s1 --> s3",
        "s2 --> s3",
    ]
    assert "  class s0 expands" in lines


def test_dot_quotes_what_it_must() -> None:
    drawn = graph.dot(PICTURED)
    assert r'"child-1" [label="child-1\nsays \"no\" <b>\nthink <= 512 tokens after parent", shape=ellipse' in drawn
    assert '"parent" -> "child-1" [style=bold];' in drawn
    assert '"look" -> "out";' in drawn
    assert drawn.count("{") == drawn.count("}") == 1


def test_text_folds_steps_that_are_alike() -> None:
    samples = [think(f"sample-{i}") for i in range(1, 1001)]
    lines = graph.text(plan(*samples, join("out", *(step.name for step in samples)))).splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"0 +sample-1 \.\. sample-1000 \(1000\) +think <= 10 tokens", lines[1])
    assert re.fullmatch(
        r"1 +out \* +join collect, all +sample-1, sample-2, sample-3, sample-4, sample-5 and 995 more", lines[2]
    )
    assert lines[3] == "1001 steps, * the output"


def test_networkx_is_loaded_only_when_needed() -> None:
    code = "import sys, plait.core.graph; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

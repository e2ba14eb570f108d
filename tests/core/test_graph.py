"""The shape of plans: refusals in words, and every measure against a brute-force count on small random plans."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, strategies as st

from plait.apps.common import graph
from plait.core.budget import Budget
from plait.core.errors import PlanError
from plait.core.ops import Join, ModelCall, Plugin, Ref, Text, Tokens, ToolCall
from plait.core.plan import Plan, Step, needs, validate
from plait.core.record import StepRecord
from plait.core.request import Request
from plait.core.sampling import Sampling, StructuredOutput
from plait.machine.plans import insert
from plait.machine.records import Run, Scope
from plait.runtime.plugins.loader import Plugins


def call(name: str, *needs: str, tool: str = "f") -> Step:
    return Step(name=name, op=ToolCall(tool=tool), needs=needs)


def think(name: str, *needs: str, tokens: int = 10, after: str | None = None, expands: bool = False) -> Step:
    op = ModelCall(prompt="go on", after=after, sampling=Sampling(max_tokens=tokens))
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
    assert max(node.path_tokens.upward_rank for node in added.nodes) == graph.critical_path(p).length


@given(dags(), st.randoms())
def test_a_plan_in_any_order_enters_a_machine_like_one_in_order(p: Plan, random: Any) -> None:
    run = Run("r", Request(), Plugins().task(Request().task, "text"))
    steps = list(p.steps)
    random.shuffle(steps)
    added = insert(Plan(steps=tuple(steps), output=p.output), Scope(run, None, None, "r:"), None, 0.0, Plugins().merge)
    ranks = {node.step.name: node.path_tokens.upward_rank for node in added.nodes}
    costs = {step.name: step.token_cost() for step in p.steps}
    for name in costs:
        readers = [ranks[step.name] for step in p.steps if name in step.needs]
        assert ranks[name] == costs[name] + max(readers, default=0)


def test_a_critical_path_ends_in_the_output_also_where_that_weighs_nothing() -> None:
    p = plan(call("stray", "out"), call("a"), join("j", "a"), join("out", "j"))
    assert graph.critical_path(p) == graph.Chain(("a", "j", "out"), 1.0)
    assert graph.critical_path(Plan(steps=())) == graph.Chain((), 0.0)


def test_a_cycle_is_named_by_each_measure() -> None:
    cyclic = plan(call("a", "b"), call("b", "a"), join("out", "a"))
    for measure in (graph.waves, graph.critical_path, graph.text, Plan._repr_html_):
        with pytest.raises(PlanError, match=r"the plan has a cycle: (\w) needs \w needs \1$"):
            measure(cyclic)


def test_a_context_line_goes_through_what_an_expansion_ended_in() -> None:
    steps = [
        StepRecord("r:a", "a", "think", source="r:a/y"),
        StepRecord("r:a/x", "x", "think", owner="r:a", after="r:a"),
        StepRecord("r:a/y", "y", "think", owner="r:a", after="r:a/x"),
        StepRecord("r:b", "b", "think", after="r:a"),
        StepRecord("r:c", "c", "think", after="r:gone"),
    ]
    line = graph.context_lines(steps)
    assert line("r:b") == ["r:a", "r:a/y", "r:a/x"]
    assert line("r:a/y") == ["r:a/x", "r:a", "r:a/y"]
    assert (line("r:a"), line("r:c"), line("nobody")) == ([], ["r:gone"], [])


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
            r"'out' refers to 'zzz', which is not a step of the plan; there are a, out",
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
        Step(name="c", op=ToolCall(tool="f", args={"x": [{"$ref": "a"}], "y": {"$literal": {"$ref": "nobody"}}})),
        Step(name="d", op=ModelCall(prompt=(Text(text="see "), Ref(step="c")), after="b")),
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


# -- networkx ----------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)
LIMITS = st.none() | st.builds(Budget, tokens=st.integers(1, 99), seconds=st.floats(0.1, 9))


def _ops(draw: st.DrawFn, name: str, before: list[Step]) -> tuple[ModelCall | ToolCall | Join, tuple[str, ...]]:
    """An op of any kind that reads some of the steps before it, with the step's needs, which may repeat."""
    names = [step.name for step in before]
    some = st.lists(st.sampled_from(names), max_size=4) if names else st.just([])
    needed, read = tuple(draw(some)), draw(some)
    kind = draw(st.sampled_from(("think", "call", "join")))
    if kind == "call":
        args = {f"r{i}": {"$ref": other} for i, other in enumerate(read)} | {"v": {"$literal": draw(VALUES)}}
        return ToolCall(tool="f", args=args, approve=draw(st.sampled_from((None, True)))), needed
    if kind == "join":
        merge = Plugin(name="majority", options=draw(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=2)))
        quorum = draw(st.none() | st.integers(1, 3)) if needed else None
        on_failure = "quorum" if quorum else "best-effort" if needed else "any-end"
        deadline = draw(st.none() | st.floats(0.1, 9))
        return Join(merge=merge, on_failure=on_failure, quorum=quorum, deadline=deadline), needed
    continued = [step.name for step in before if step.op.kind == "think"]
    parts = (Text(text=draw(st.text(max_size=5))), Tokens(ids=(1, 2)), *(Ref(step=other) for other in read))
    form = draw(st.none() | st.just(StructuredOutput(kind="choice", spec=["a", "b"])))
    sampling = Sampling(max_tokens=draw(st.integers(1, 9)), temperature=draw(st.none() | st.floats(0, 2)),
                        stop=("x",), logit_bias={"7": -1.5}, structured=form)  # fmt: skip
    after = draw(st.none() | st.sampled_from(continued)) if continued else None
    return ModelCall(prompt=parts, after=after, sampling=sampling, model=draw(st.none() | st.just("m"))), needed


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Valid plans with steps of every kind, in any order."""
    steps: list[Step] = []
    for name in NAMES[: draw(st.integers(0, 5))]:
        op, needed = _ops(draw, name, steps)
        fields = {"expands": draw(st.booleans()), "priority": draw(st.integers(-2, 2)), "state": draw(VALUES)}
        fields |= {"budget": draw(LIMITS), "label": draw(st.text(max_size=5))}
        steps.append(Step(name=name, op=op, needs=needed, **fields))
    ends = tuple(draw(st.permutations([step.name for step in steps])))
    out = Step(name="out", op=Join(on_failure="any-end"), needs=ends)
    return Plan(steps=tuple(draw(st.permutations([*steps, out]))), output="out", budget=draw(LIMITS))


@given(plans())
def test_a_valid_plan_comes_back_from_networkx_equal(p: Plan) -> None:
    validate(p)
    taken = p.to_networkx()
    assert Plan.from_networkx(taken) == p
    assert [step.name for step in p.steps] == list(taken)
    assert set(taken.edges) == {(need, step.name) for step in p.steps for need in needs(step)}
    linked = json.loads(json.dumps(nx.node_link_data(taken, edges="edges")))
    linked = nx.DiGraph(nx.node_link_graph(linked, edges="edges"))
    assert Plan.from_networkx(linked) == p


def drawn() -> nx.DiGraph[str]:
    return plan(
        think("a", tokens=7),
        Step(name="b", op=ModelCall(prompt=("see ", Ref(step="a")), after="a"), label="the second"),
        call("c"),
        join("out", "c", "b", "c"),
    ).to_networkx()


def test_nodes_and_edges_say_what_they_are() -> None:
    taken = drawn()
    assert taken.graph == {"output": "out", "budget": None}
    assert nx.get_node_attributes(taken, "kind") == {"a": "think", "b": "think", "c": "call", "out": "join"}
    assert nx.get_node_attributes(taken, "tokens") == {"a": 7, "b": 512, "c": 1, "out": 0}
    assert taken.nodes["b"]["label"] == "the second" and taken.nodes["b"]["op"]["after"] == "a"
    assert {edge[:2]: tuple(edge[2].values()) for edge in taken.edges(data=True)} == {
        ("a", "b"): (("ref", "after"), []),
        ("b", "out"): (("needs",), [1]),
        ("c", "out"): (("needs",), [0, 2]),
    }


def test_a_graph_made_by_hand_is_a_plan() -> None:
    made: nx.DiGraph[str] = nx.DiGraph(output="out")
    made.add_node("a", op=ToolCall(tool="f"))
    made.add_node("b", op={"kind": "call", "tool": "g"}, priority=1)
    made.add_node("out", op={"kind": "join"}, label="both")
    made.add_edges_from([("b", "out"), ("a", "out")], weight=2.5)
    made.edges["a", "out"]["positions"] = [0]
    assert Plan.from_networkx(made) == plan(
        call("a"),
        Step(name="b", op=ToolCall(tool="g"), priority=1),
        Step(name="out", op=Join(), needs=("a", "b"), label="both"),
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda g: g.add_edge("out", "a"), r"cycle: (\w+) needs \w+ needs \w+ needs \1$"),
        (lambda g: g.add_edge("a", "a"), "'a' refers to itself"),
        (lambda g: g.graph.pop("output"), r'has no output: set graph\.graph\["output"\]'),
        (lambda g: g.graph.update(output="ou"), "output 'ou' is not a step"),
        (lambda g: g.graph.update(budgets=None), r"Plan: `budgets` is not known here; did you mean 'budget'\?"),
        (lambda g: g.nodes["b"].update(prioritty=1), r"node 'b': .*`prioritty` is not known.*did you mean 'priority'"),
        (lambda g: g.nodes["b"].update(needs=["a"]), "node 'b': `needs` is not a node attribute"),
        (lambda g: g.nodes["b"].update(tokens=9), "node 'b': `tokens` is 9, but the `op` gives 512"),
        (lambda g: g.nodes["b"].update(kind="call"), "node 'b': `kind` is 'call', but the `op` gives 'think'"),
        (lambda g: g.add_node("d"), "node 'd': .*`op` is missing"),
        (lambda g: g.add_node(3, op={"kind": "join"}), "node 3: .*valid string"),
        (lambda g: g.add_node("d", op={"kind": "call", "tool": "f"}), "'d' does not lead to the output"),
        (lambda g: g.remove_node("a"), "step 'b' refers to 'a', which is not a step"),
        (lambda g: g.remove_edge("a", "b"), "'b' reads 'a' in its `op`, but there is no edge a -> b: add"),
        (lambda g: g.edges["a", "b"].update(kinds=["ref"]), r"the kinds \['ref'\], .* give \['ref', 'after'\]"),
        (lambda g: g.add_edge("a", "c", kinds=["after"]), r"a -> c has the kinds \['after'\], .* give \[\]"),
        (lambda g: g.edges["b", "out"].update(positions=["x"]), "'out': .*`positions` that are not a list of integers"),
    ],
)  # fmt: skip
def test_a_graph_that_is_no_plan_is_refused(spoil: Callable[[nx.DiGraph[str]], object], said: str) -> None:
    taken = drawn()
    spoil(taken)
    with pytest.raises(PlanError, match=said):
        Plan.from_networkx(taken)


def test_only_a_simple_directed_graph_is_a_plan() -> None:
    for other in (nx.Graph(drawn()), nx.MultiDiGraph(drawn())):
        with pytest.raises(PlanError, match=f"needs an nx.DiGraph, got {type(other).__name__}"):
            Plan.from_networkx(other)  # pyright: ignore[reportArgumentType]


# -- pictures ----------------------------------------------------------------------------------------------------------

PICTURED = plan(
    think("parent", tokens=64, expands=True),
    Step(name="child-1", op=ModelCall(prompt="x", after="parent"), label='says "no" <b>'),
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
    code = "import sys, plait.apps.common.graph, plait.core.plan; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""A class has at most 25 attributes and a function at most 15 branches.

`LARGER` lists what exceeds that today, with its number. A new entry or a growing number fails; an entry that is
within the limits again must be deleted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from tests.test_architecture import SHIPPED, module_name, sources, tree

MAX_ATTRIBUTES = 25
MAX_BRANCHES = 15

BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Try,
    ast.ExceptHandler,
    ast.BoolOp,
    ast.IfExp,
    ast.comprehension,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def count_attributes(node: ast.ClassDef) -> int:
    """Return the number of attributes that a class declares or that its methods assign on `self`."""
    names = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for method in node.body:
        if isinstance(method, FUNCTIONS):
            names |= {
                part.attr
                for part in ast.walk(method)
                if isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and isinstance(part.value, ast.Name)
                and part.value.id == "self"
            }
    return len(names)


def count_branches(node: ast.AST) -> int:
    """Return the number of branches of a function, nested functions included.

    A `match` whose cases do not branch any further is a dispatch table, like a dictionary of functions: it counts once.
    """
    if isinstance(node, ast.Match):
        inside = [count_branches(part) for case in node.cases for part in case.body]
        guards = [case.guard for case in node.cases if case.guard is not None]
        if not guards and not any(inside):
            return 1
    own = isinstance(node, BRANCHES)
    return own + sum(count_branches(part) for part in ast.iter_child_nodes(node))


def definitions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the classes and functions in a tree with their full names."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, (ast.ClassDef, *FUNCTIONS)):
            yield f"{name}.{part.name}", part
            yield from definitions(part, f"{name}.{part.name}")
        else:
            yield from definitions(part, name)


@cache
def larger() -> dict[str, int]:
    """Return what is over its limit: full names, with the number of attributes or branches."""
    numbers: dict[str, int] = {}
    for path in sources(*SHIPPED):
        for name, node in definitions(tree(path), module_name(path)):
            is_class = isinstance(node, ast.ClassDef)
            number = count_attributes(node) if is_class else count_branches(node)
            if number > (MAX_ATTRIBUTES if is_class else MAX_BRANCHES):
                numbers[name] = max(number, numbers.get(name, 0))
    return numbers


LARGER: dict[str, int] = {
    "plait.apps.commands.run.show": 18,
    "plait.apps.common.dataset.guess_columns": 19,
    "plait_server.outside._Walk._look": 21,
    "plait.apps.repl.completion.ReplCompleter._plugins": 18,
    "plait.apps.repl.view.story": 21,
    "plait.apps.trace.read.read_trace": 18,
    "plait.core.request.Request": 30,
    "plait.core.tools.calls._scalar": 16,
    "plait.core.values.json_value": 21,
    "plait.machine.budgets.admit": 19,
    "plait.machine.budgets.enter": 16,
    "plait.machine.machine.Machine._on_progressed": 18,
    "plait.machine.plans._connect": 17,
    "plait.machine.plans._resolve": 21,
    "plait.machine.plans.insert": 19,
    "plait.machine.steps.Steps._notify": 21,
    "plait.planners.split.skeleton.read_points": 17,
    "plait.planners.threads.threads.Threads.patch": 16,
    "plait.planners.tools.llmcompiler.binding.bind": 21,
    "plait.planners.tools.llmcompiler.parser.PlanText._line": 17,
    "plait.planners.tools.llmcompiler.parser.PlanText._start": 17,
    "plait.planners.tools.llmcompiler.reader.PlanReader._step": 17,
    "plait_research.planners.workflow.plan._node": 17,
    "plait_research.planners.workflow.plan.apply_repair": 18,
    "plait.policies.merge.values.Splice.merge": 20,
    "plait_research.planners.route.ways": 22,
    "plait_research.policies.search.leaf_sampling.select_by_program": 21,
    "plait_research.policies.search.leaf_sampling.Ets.select_leaves": 22,
    "plait.runtime.client.answer._waited_for": 18,
    "plait.runtime.client.client.AsyncOrchestrator._submit": 20,
    "plait.runtime.driver.autoscaler.Elastic.look": 20,
    "plait.runtime.driver.expander.Expander.expand": 22,
    "plait.runtime.driver.expander.with_defaults": 16,
    "plait.runtime.driver.flows.RunningFlow": 27,
    "plait.runtime.journal.writer.Recorder.acted": 22,
    "plait.runtime.runlog.RunLog._touch": 18,
    "plait.workers.engine.sampling_parameters.Abilities.params": 17,
    "plait.workers.engine.vllm.Core._end": 21,
    "plait.workers.engine.requests.PreparedRequest": 26,
    "plait.workers.engine.vllm.Core._summarise": 17,
    "plait.workers.engine.vllm.Core.order": 29,
    "plait.workers.ray.RayWorker": 42,
    "plait.workers.tools.tool_loader.to_json": 22,
    "plait_research.tools.reward.reward_model": 21,
    "plait.workers.tools.tool_loader.load_tools": 20,
    "plait_bench.environments.bash_sql.BashSqlEnvironment.grade": 18,
    "plait_bench.tasks.tables.questions.answer": 21,
    "plait_research.planners.code_search.Searching.answer": 21,
    "plait_research.policies.merge.groups.Alike.merge": 22,
    "plait_research.rollouts.record.Record._consistent": 16,
    "plait_research.route.fit.compare_choices": 16,
    "plait_research.simulation.calibrate.recorded": 19,
}
"""Classes with too many attributes and functions with too many branches, by full name."""


def test_no_class_and_no_function_outgrows_its_limit() -> None:
    grown = {name: number for name, number in larger().items() if number > LARGER.get(name, 0)}
    assert not grown, f"more than {MAX_ATTRIBUTES} attributes or {MAX_BRANCHES} branches: {grown}. Divide what grew."


def test_the_table_of_larger_ones_shrinks() -> None:
    mended = sorted(LARGER.keys() - larger().keys())
    assert not mended, f"within the limits, or gone: delete these from LARGER: {mended}"


def test_the_count_of_attributes_and_branches() -> None:
    text = """
class Sample:
    one: int
    def method(self):
        self.two = 2 if self.one else 3
        self.two, self.three = 4, 5
        other.four = 6
    def table(self, value):
        match value:
            case 1: return 2
            case 2: return 3
    def no_table(self, value):
        match value:
            case 1: return 2
            case 2:
                if self.one and self.two: return [x for x in value if x]
"""
    (sample,) = ast.parse(text).body
    assert isinstance(sample, ast.ClassDef)
    assert count_attributes(sample) == 3
    assert [count_branches(part) for part in sample.body[1:]] == [1, 1, 5]

"""No program reads prose: causes, codes and data say it to programs; the page of errors lists them."""

from __future__ import annotations

import ast
import importlib
import re
import typing
from collections.abc import Iterable, Iterator

import pytest

from plait.core import errors
from plait.core.causes import Cause
from plait.core.errors import PlaitError
from tests.test_architecture import PLANNERS, ROOT, SHIPPED, module_name, over, sources, tree

PROSE = ("reason", "why", "message")
"""Fields that hold sentences for people."""
LOOKS_IN = ("startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition", "removeprefix")
EXEMPT = {
    "orchestrator/plait/apps/job.py": "Ray's Jobs API raises RuntimeError for everything",
    "orchestrator/plait/runtime/client/answer.py": "our own: `explain` shows no sentence twice",
    "orchestrator/plait/core/tools/tool.py": "pydantic names the type that it cannot read in the message alone",
    "orchestrator/plait/runtime/driver/flows.py": "Python raises RuntimeError for an await outside its own loop",
    "workers/plait/workers/engine/core_process.py": "vLLM raises whatever its parts raise",
    "workers/plait/workers/http/__init__.py": "servers report a prompt longer than the context in the message alone",
    "workers/plait/workers/http/server_probe.py": "servers name a field that they refuse in the message alone",
    "workers/plait/workers/http/request_sender.py": "servers name a missing chat template in the message alone",
    "workers/plait/workers/http/server_support.py": "servers name a refused field about functions in the message alone",
    "workers/plait/workers/ray/cluster.py": "Ray's errors about tokens have no class of their own",
    "workers/plait/workers/tools/tool_loader.py": "json raises ValueError for everything",
}
"""Files that look into messages, nearly all of other people's code, and why there is nothing else to look at."""


def _texts(node: ast.AST, prose: set[str]) -> bool:
    """Whether an expression is a sentence for people: a field of that name, `str(error)`, or a name bound to one."""
    match node:
        case ast.Attribute(attr=attr):
            return attr in PROSE
        case ast.Name(id=name):
            return name in prose
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
            return f"except {name}" in prose
        case ast.Call(func=ast.Attribute(value=value, attr="lower" | "upper" | "strip" | "casefold" | "split")):
            return _texts(value, prose)
        case ast.BinOp(left=left, right=right):
            return _texts(left, prose) or _texts(right, prose)
        case ast.Subscript(value=value):
            return _texts(value, prose)
        case _:
            return False


def _reads_prose(function: ast.AST) -> Iterator[ast.expr]:
    """Places of a function that compare or search sentences."""
    prose = {f"except {node.name}" for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    arguments = function.args.args if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else []
    for argument in arguments:
        if argument.annotation is not None and re.search("Error|Exception", ast.unparse(argument.annotation)):
            prose.add(f"except {argument.arg}")
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _texts(node.value, prose):
            prose |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=left, comparators=others) if not _is_empty([left, *others]):
                if any(_texts(each, prose) for each in [left, *others]):
                    yield node
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[wanted, *_]) if attr in LOOKS_IN:
                # A message may be cut at its first line, to be shown.
                if _texts(value, prose) and ast.unparse(wanted) != repr("\n"):
                    yield node
            case ast.Call(func=ast.Attribute(attr="search" | "match" | "fullmatch"), args=args):
                if any(_texts(each, prose) for each in args):
                    yield node
            case _:
                pass


def _is_empty(sides: Iterable[ast.expr]) -> bool:
    """Whether a comparison only asks if there is a text at all."""
    return any(isinstance(side, ast.Constant) and side.value in (None, "") for side in sides)


@over(sources(*SHIPPED))
def test_no_program_reads_prose(path: str) -> None:
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = sorted(
        {f"{path}:{place.lineno}: {ast.unparse(place)}" for each in functions for place in _reads_prose(each)}
    )
    if path in EXEMPT:
        assert lines, f"{path} looks into no message any more: take it off the list"
    else:
        assert not lines, f"a cause, a code or data says it to programs: {lines}"


def test_the_page_of_errors_and_the_classes_agree() -> None:
    names = "|".join(error.__name__ for error in errors.error_classes())
    for path in sources(*SHIPPED):
        if re.search(rf"^class \w+\(({names})\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(module_name(path))
    ours = [error for error in errors.error_classes() if error.__module__.startswith(("plait.", "plait_"))]
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `(\w+)` \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(rows) == sorted((error.code, error.__name__) for error in ours)
    assert len({code for code, _ in rows}) == len(rows), "a code of its own for each"


def test_the_page_of_errors_has_the_status_that_the_server_gives_and_every_cause() -> None:
    pytest.importorskip("starlette", reason="the server's packages are not installed: pip install 'plait[serve]'")
    from plait_server.errors import of_error

    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for error in errors.error_classes():
        status = re.search(rf"^\| `{error.code}` \| `{error.__name__}` \| (\d+)", page, re.MULTILINE)
        if status is not None and error.__init__ in (PlaitError.__init__, errors.UsageError.__init__):
            assert of_error(error("x")).status == int(status[1]), error.code
    causes = page.partition("## Causes")[2]
    assert set(re.findall(r"`([a-z-]+)`", causes.partition("|---|---|")[2])) == set(typing.get_args(Cause))


READS_DOCSTRINGS = {
    "orchestrator/plait/core/tools/tool.py": "a tool's description is its function's docstring",
    "packages/plait-bench/plait_bench/tasks/tables/questions.py": "makes tools, whose descriptions are docstrings",
    "orchestrator/plait/runtime/plugins/inline.py": "a class made of a function gets the function's docstring",
    "orchestrator/plait/runtime/plugins/loader.py": "the listing shows a plugin's first sentence",
}
"""Files that read or set docstrings, each only for people to read (or for a model, of a tool)."""


@over(sources(*SHIPPED))
def test_docstrings_are_shown_and_decide_nothing(path: str) -> None:
    nodes = list(ast.walk(tree(path)))
    names = {getattr(node, "attr", getattr(node, "id", getattr(node, "value", None))) for node in nodes
             if isinstance(node, ast.Attribute | ast.Name | ast.Constant)}  # fmt: skip
    reads = bool(names & {"__doc__", "getdoc", "getsource"})
    assert reads == (path in READS_DOCSTRINGS), f"{path}: declare it as a field, a type or a class variable"


@over(sources(*PLANNERS))
def test_a_planner_does_not_parse_names_and_labels_of_steps(path: str) -> None:
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="step"), attr=read), attr=verb)):
                parses = read in ("name", "label") and verb in (*LOOKS_IN, "split")
            case ast.Call(func=ast.Attribute(attr=verb), args=[*_, ast.Attribute(attr="name" | "label")]):
                parses = verb in ("match", "fullmatch", "search")
            case _:
                parses = False
        assert not parses, f"{path}: {ast.unparse(node)}: go by `Step.role` or `Step.state`"

"""Native tool calls read as plans, and plans that the engine is held to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from plait import tool
from plait.core.call_config import CallConfig
from plait.core.errors import PluginError
from plait.core.ops import ModelCall
from plait.core.sampling import StructuredOutput
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.llmcompiler.grammar import LINES, grammar
from plait.planners.tools.llmcompiler.tool_calls import NativeCalls
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers._shared.prompt import Prompter
from plait.workers.scripted import Reply, Scripted


@tool
def search(query: str, limit: int = 3) -> str:
    """Look something up."""
    return f"{limit} on {query}"


@tool
def fetch_page(of: dict[str, int], exact: bool | None = None) -> str:
    """Fetch a page."""
    return f"page of {of} {exact}"


ONE = {"name": "search", "arguments": {"query": 'a "b" (c)', "limit": 2}}
TWO = {"type": "function", "id": "x", "function": {"name": "fetch_page", "arguments": '{"of": "$1", "exact": null}'}}
FORMS = {
    "openai message": json.dumps({"role": "assistant", "content": None, "tool_calls": [ONE | {"id": "y"}, TWO]}),
    "list": json.dumps([ONE, TWO], indent=1),
    "fenced list": "```json\n" + json.dumps([ONE, TWO]) + "\n```",
    "tags": f"I need two.\n<tool_call>\n{json.dumps(ONE)}\n</tool_call>\n<tool_call>{json.dumps(TWO)}</tool_call>",
    "last tag not closed": f"<tool_call>{json.dumps(ONE)}</tool_call>\n<tool_call>\n{json.dumps(TWO)}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_native_calls_are_tasks(form: str) -> None:
    made: Any = LLMCompiler().parse(FORMS[form], [search.spec, fetch_page.spec])
    assert made["errors"] == []
    steps = made["steps"]
    assert isinstance(steps, list)
    assert steps[0] == {"name": "1", "tool": "search", "args": {"query": 'a "b" (c)', "limit": 2}, "needs": []}
    assert steps[1]["tool"] == "fetch_page"
    assert steps[1]["args"] == {"of": {"$ref": "1"}, "exact": None}
    assert "2 native tool calls read as tasks" in made["repairs"]


@pytest.mark.parametrize("form", FORMS)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_chunking_gives_the_same_lines(form: str, cuts: list[int]) -> None:
    text = FORMS[form]
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    whole, pieces = NativeCalls(), NativeCalls()
    expected = whole.feed(text) + whole.close()
    found = "".join(pieces.feed(text[a:b]) for a, b in zip(places, places[1:], strict=False)) + pieces.close()
    assert found == expected
    assert pieces.count == 2


@given(st.text(alphabet='<tool_call>/{}[]"name:argumts1. f()\n`', max_size=200), st.integers(1, 7))
def test_text_without_calls_goes_through_unchanged(text: str, size: int) -> None:
    native = NativeCalls()
    out = "".join(native.feed(text[i : i + size]) for i in range(0, len(text), size)) + native.close()
    if native.count == 0:
        assert out == text


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "rm -rf", "arguments": {}}]',
        '[{"name": "search", "arguments": "not json"}]',
        '[{"name": "search", "arguments": {"a b": 1}}]',
        "[" * 5000,
        '{"tool_calls": 7}',
        "<tool_call>" * 50,
    ],
)
def test_what_is_no_call_is_none(text: str) -> None:
    native = NativeCalls()
    native.feed(text)
    native.close()
    assert native.count == 0


async def test_a_call_starts_when_its_tag_is_closed() -> None:
    started: list[str] = []

    @tool
    def note(what: str) -> str:
        """Note it."""
        started.append(what)
        return what

    calls = "".join(f'<tool_call>{{"name": "note", "arguments": {{"what": "{w}"}}}}</tool_call>\n' for w in "ab")
    worker = Scripted(
        [Reply(when="^Answer the question from", text="Action: Finish(both)"), Reply(text=calls, tokens_per_second=40)]
    )
    async with AsyncOrchestrator(workers=[worker], tools=[note]) as orchestrator:
        answer = await orchestrator.run("do it", planner="llmcompiler")
    assert (answer.status, answer.answer) == ("done", "both")
    assert started == ["a", "b"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"name": "search", "arguments": '{"query": "del'}, "its arguments are not a JSON object"),
        ({"name": "search", "arguments": [1]}, "its arguments are not a JSON object"),
        ({"name": "rm -rf", "arguments": {}}, "'rm -rf' is not a tool name"),
        ({"name": "", "arguments": "{}"}, "the call names no tool"),
        ({"name": "search", "arguments": {"a b": 1}}, "'a b' is not an argument name"),
    ],
)
def test_a_call_that_cannot_be_read_is_an_error_and_keeps_its_number(call: object, why: str) -> None:
    text = "".join(f"<tool_call>{json.dumps(each)}</tool_call>\n" for each in (call, ONE, TWO))
    made: Any = LLMCompiler().parse(text, [search.spec, fetch_page.spec])
    first, second = made["errors"]
    assert why in first and first.startswith("1. ")
    assert "3. fetch_page" in second and "it needs task 1, which is not run" in second
    assert [step["name"] for step in made["steps"] if step["tool"] != "join"] == ["2"]


@pytest.mark.parametrize("template", ["a template of tools", None])
def test_an_engines_chat_template_is_told_of_the_functions(template: str | None) -> None:
    class Tokenizer:
        chat_template = template
        told: dict[str, object] | None = None

        def apply_chat_template(self, message: object, **options: object) -> str:
            self.told = options
            return "rendered"

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return list(text.encode())

    tokenizer = Tokenizer()
    orchestrator = AsyncOrchestrator(workers=[], tools=[search])
    op = orchestrator.plan("q", planner="llmcompiler:dialect=native").steps[0].op
    assert isinstance(op, ModelCall) and [each.name for each in op.tools] == ["search"]
    ids = Prompter(tokenizer).ids(op)
    if template is None:
        assert bytes(ids).decode().startswith("Given a question") and tokenizer.told is None
    else:
        assert bytes(ids) == b"rendered" and tokenizer.told is not None
        told: Any
        (told,) = cast("list[Any]", tokenizer.told["tools"])
        assert told["function"]["parameters"]["properties"]["query"]["type"] == "string"


def test_native_calls_and_a_form_of_ones_own_exclude_each_other() -> None:
    form = StructuredOutput(kind="regex", spec="a")
    with pytest.raises(PluginError, match="two languages"):
        LLMCompiler(dialect="native", plan=CallConfig(form=form))
    orchestrator = AsyncOrchestrator(workers=[], tools=[search])
    op = orchestrator.plan("q", planner="llmcompiler:dialect=native").steps[0].op
    assert isinstance(op, ModelCall) and op.sampling.structured is None and op.tool_choice == "required"


def test_one_repair_is_one() -> None:
    made: Any = LLMCompiler().parse(json.dumps([ONE]))
    assert "1 native tool call read as tasks" in made["repairs"]


@tool
def total(values: list[float]) -> float:
    """Add up."""
    return sum(values)


@tool
def now() -> str:
    """The time."""
    return "12:00"


def allows(text: str, known: Sequence[int] = (), first: int = 1) -> bool:
    """Whether an engine held to the grammar could write a whole plan."""
    xgrammar = pytest.importorskip("xgrammar")
    tokens = xgrammar.TokenizerInfo([chr(each) for each in range(128)], stop_token_ids=[0])
    specs = [search.spec, fetch_page.spec, total.spec, now.spec]
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(tokens).compile_grammar(grammar(specs, known, first)))
    return matcher.accept_string(text) and matcher.accept_token(0)


GOOD = """\
1. search(query="a")
2. search(query="b ${1} for $$5", limit=2)
Thought: now both
3. fetch_page(of=$1)
4. total(values=[$1, 2.5, -1e3])
5. now()
6. join()<END_OF_PLAN>"""


def test_a_constrained_plan_is_what_the_grammar_allows() -> None:
    assert allows(GOOD)
    for wrong, instead in (
        ("of=$1", "of=$3"),  # itself
        ("of=$1", "of=$4"),  # a later one
        ("${1} for", "${2} for"),
        ("search(query", "delete(query"),
        ("limit=2", "limit=two"),
        ("limit=2", "size=2"),
        ("5. now", "7. now"),
        ('search(query="b', 'search("b'),
        ("<END_OF_PLAN>", ""),
        ("1. search", "Sure:\n1. search"),
        ('search(query="b ${1} for $$5", limit=2)', "search(limit=2)"),  # lacks what it must have
    ):
        assert not allows(GOOD.replace(wrong, instead)), instead
    assert not allows("1. join()<END_OF_PLAN>"), "a plan has a call"


def test_another_plan_counts_on_and_may_refer_to_the_results_there_are() -> None:
    plan = "4. fetch_page(of=$2)\n5. fetch_page(of=$4)\n6. join()<END_OF_PLAN>"
    assert allows(plan, known=(1, 2), first=4)
    assert not allows(plan.replace("$2", "$3"), known=(1, 2), first=4)


def test_a_plan_longer_than_the_grammar_counts_goes_on() -> None:
    lines = [f"{at}. now()" for at in range(1, LINES + 30)]
    assert allows("\n".join([*lines, f"{LINES + 30}. join()<END_OF_PLAN>"]))


_VALUE = {
    "string": st.text(alphabet='ab "\\{}[],=()', max_size=8),
    "integer": st.integers(-999, 999),
    "boolean": st.booleans(),
}


@given(st.data())
def test_what_the_grammar_allows_is_read_without_repairs(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(_VALUE)), min_size=1, max_size=3))
    fields: dict[str, Any] = {f"a{at}": {"type": kind} for at, kind in enumerate(kinds)}
    spec = now.spec.model_copy(
        update={"name": "f", "parameters": {"type": "object", "properties": fields, "required": list(fields)}}
    )
    values = {name: data.draw(_VALUE[kind["type"]]) for name, kind in fields.items()}
    text = ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    plan = f"1. f({text})\n2. join()<END_OF_PLAN>"
    xgrammar = pytest.importorskip("xgrammar")
    tokens = xgrammar.TokenizerInfo([chr(each) for each in range(128)], stop_token_ids=[0])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(tokens).compile_grammar(grammar([spec])))
    assert matcher.accept_string(plan)
    made: Any = LLMCompiler().parse(plan, [spec])
    assert made["errors"] == [] and made["repairs"] == [] and made["steps"][0]["args"] == values


def test_the_planner_asks_the_engine_for_it() -> None:
    orchestrator = AsyncOrchestrator(workers=[], tools=[search])
    for planner, kind in (("llmcompiler", "grammar"), ("llmcompiler:plan.form=null", None)):
        op = orchestrator.plan("q", planner=planner).steps[0].op
        assert isinstance(op, ModelCall)
        form = op.sampling.structured
        assert (form.kind if form is not None else None) == kind
        assert form is None or not form.required, "a worker that cannot does without"
    assert op.sampling.stop  # and the end mark still ends it


def test_equal_calls_are_made_once_and_others_as_often_as_they_are_written() -> None:
    @tool(side_effects=True)
    def send(to: str) -> str:
        """Send it."""
        return to

    plan = """1. search(query="a")
2. search(query="a", limit=3)
3. send(to="x")
4. send(to="x")
5. fetch_page(of=$2)
6. join()<END_OF_PLAN>"""
    made: Any = LLMCompiler().parse(plan, [search.spec, fetch_page.spec, send.spec])
    assert made["errors"] == []
    assert [step["name"] for step in made["steps"]] == ["1", "3", "4", "5", "6"]
    assert made["steps"][3]["args"] == {"of": {"$ref": "1"}}, "who refers to the second means the first"
    assert "task 2: the same call as task 1, made once" in made["repairs"]

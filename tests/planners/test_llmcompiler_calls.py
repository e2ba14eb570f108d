"""Native tool calls read as plans, and plans that the engine is held to."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from plait import tool
from plait.core.errors import PluginError
from plait.core.ops import Think
from plait.core.prompt import Prompt
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.llmcompiler.prompts import expression
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
        [Reply(when="^Answer a question", text="Action: Finish(both)"), Reply(text=calls, tokens_per_second=40)]
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
        ({"name": "rm -rf", "arguments": {}}, "'rm -rf' is no name of a tool"),
        ({"name": "", "arguments": "{}"}, "the call names no tool"),
        ({"name": "search", "arguments": {"a b": 1}}, "'a b' is no name of an argument"),
    ],
)
def test_a_call_that_cannot_be_read_is_an_error_and_keeps_its_number(call: object, why: str) -> None:
    text = "".join(f"<tool_call>{json.dumps(each)}</tool_call>\n" for each in (call, ONE, TWO))
    made: Any = LLMCompiler().parse(text, [search.spec, fetch_page.spec])
    first, second = made["errors"]
    assert why in first and first.startswith("1. ")
    assert "3. fetch_page" in second and "it needs task 1, which is not run" in second
    assert [step["name"] for step in made["steps"] if step["tool"] != "join"] == ["2"]


@pytest.mark.parametrize("template", ["a template", None])
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
    assert isinstance(op, Think) and [each.name for each in op.tools] == ["search"]
    ids = Prompter(tokenizer).ids(op)
    if template is None:
        assert bytes(ids).decode().startswith("Given a question") and tokenizer.told is None
    else:
        assert bytes(ids) == b"rendered" and tokenizer.told is not None
        told: Any
        (told,) = cast("list[Any]", tokenizer.told["tools"])
        assert told["function"]["parameters"]["properties"]["query"]["type"] == "string"


def test_native_calls_and_a_constrained_plan_exclude_each_other() -> None:
    with pytest.raises(PluginError, match="two languages"):
        LLMCompiler(dialect="native", plan=Prompt(form="calls"))


def test_one_repair_is_one() -> None:
    made: Any = LLMCompiler().parse(json.dumps([ONE]))
    assert "1 native tool call read as tasks" in made["repairs"]


def test_a_constrained_plan_is_what_the_expression_allows() -> None:
    form = expression([search.spec, fetch_page.spec])
    whole = re.compile(form)
    good = '1. search("a")\n2. search(query="b", limit=2)\nThought: now both\n3. fetch_page($1)\n4. join()<END_OF_PLAN>'
    assert whole.fullmatch(good)
    for bad in (
        "4. join()<END_OF_PLAN>",
        good.replace("search", "delete"),
        good.replace("<END_OF_PLAN>", ""),
        "Sure, here is a plan:\n" + good,
        good + "\nmore",
    ):
        assert not whole.fullmatch(bad), bad


def test_the_planner_asks_the_engine_for_it() -> None:
    orchestrator = AsyncOrchestrator(workers=[], tools=[search])
    for constrained in (True, False):
        made = orchestrator.plan("q", planner=LLMCompiler(plan=Prompt(form="calls")) if constrained else "llmcompiler")
        op = made.steps[0].op
        assert isinstance(op, Think)
        assert (op.sampling.structured is not None) == constrained
    assert op.sampling.stop  # and the end mark still ends it

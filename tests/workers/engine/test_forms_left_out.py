"""A form that vLLM cannot keep the model to: left out where the step can do without, else named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.ops import Function, ModelCall
from plait.core.result import Failure
from plait.core.sampling import Sampling, StructuredOutput
from plait.workers._shared.batch_streams import Reporter
from plait.workers._shared.function_calls import call_form
from plait.workers._shared.prompt import Prompter
from plait.workers.engine.requests import EngineOutputs, EngineRequest
from plait.workers.engine.vllm import Core


class Rejecting:
    """An engine that takes no request with a form."""

    def __init__(self, rejects: bool) -> None:
        self.rejects = rejects
        self.taken: list[Any] = []

    def add_request(self, key: str, prompt: object, params: Any, **_: object) -> str:
        if self.rejects and params.structured_outputs is not None:
            raise ValueError("no such grammar")
        self.taken.append(params)
        return key


@pytest.mark.parametrize("rejects", [True, False])
@pytest.mark.parametrize("required", [True, False])
def test_a_form_is_left_out_only_where_it_may_be(required: bool, rejects: bool) -> None:
    core: Any = object.__new__(Core)
    core.engine, core.running, core._inner = Rejecting(rejects), {}, {}
    core._tokens_input = lambda ids, **_: ids
    core.counts = {"prompt": 0, "cached": 0, "steps": 0}
    core.on_prompt_end, core._unkept = None, set()
    form = StructuredOutput(kind="json", spec={"type": "object"}, required=required)
    params = SimpleNamespace(structured_outputs=form)
    order = EngineRequest("1", Reporter(print), [1, 2], Sampling(structured=form), False, params=params)
    news: EngineOutputs = []
    core.add(order, news)
    if not rejects:
        core._end(order, news, "error", None)  # vLLM found no token at all that fits
    if required:
        ((_, failure),) = news
        assert isinstance(failure, Failure) and not core.running
    else:
        assert not news and list(core.running) == ["1"]
        assert core.engine.taken[-1].structured_outputs is None and params.structured_outputs is form
        assert "not held to the form 'json'" in order.result("stop", [], "x").why, "the result says so"
        assert ("json", '{"type": "object"}') in core._unkept, "and it is not tried again"


PICK = Function(
    name="pick.one", parameters={"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
)
TELL = Function(name="tell")


def asking(**fields: Any) -> ModelCall:
    return ModelCall(prompt="go", chat=True, tools=(PICK, TELL), **fields)


def allows(think: ModelCall, text: str) -> bool:
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [chr(each) for each in range(128)]
    tokens = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[0])
    grammar = xgrammar.GrammarCompiler(tokens).compile_structural_tag(call_form(think))
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(0)


def test_a_turn_that_must_call_is_held_to_calls_of_the_functions() -> None:
    one = '<tool_call>{"name": "pick.one", "arguments": {"n": 2}}</tool_call>'
    two = '<tool_call>{"name": "tell", "arguments": {}}</tool_call>'
    for text, right in (
        (one, True),
        (f"{one}\n{two}", True),
        (one.replace("{", "{   ", 2), False),  # no spaces for ever
        ("", False),
        ("Sure.", False),
        (one.replace("2", "3"), False),
        (one.replace("pick.one", "drop"), False),
        (one.replace('{"n": 2}', "{}"), False),
    ):
        assert allows(asking(), text) == right, text
    assert allows(asking(tool_choice="tell"), two) and not allows(asking(tool_choice="tell"), one)
    alone = asking(parallel_tool_calls=False)
    assert allows(alone, one) and not allows(alone, f"{one}\n{two}")


def test_a_turn_that_may_not_call_writes_any_other_text() -> None:
    silent = asking(tool_choice="none")
    for text, right in (
        ("The answer is {4} < 5.", True),
        ("<tool_call", True),  # the end of a text that is cut
        ('<tool_call>{"name": "tell", "arguments": {}}</tool_call>', False),
        ("Wait: <tool_call>", False),
    ):
        assert allows(silent, text) == right, text
    assert not call_form(ModelCall(prompt="go", chat=True, tool_choice="none")), "it has nothing to call"


def test_a_turn_that_may_write_something_else_is_free() -> None:
    assert not call_form(asking(tool_choice="auto")) and not call_form(ModelCall(prompt="go", chat=True))
    form = StructuredOutput(kind="choice", spec=["a"])
    assert not call_form(asking(sampling=Sampling(structured=form))), "the form that was asked for goes first"


def test_a_template_without_a_place_for_functions_tells_of_them_in_words() -> None:
    class Tokenizer:
        chat_template = "{{ messages }}"

        def apply_chat_template(self, messages: Any, **options: object) -> str:
            assert "tools" not in options
            return "\n".join(f"{each['role']}: {each['content']}" for each in messages)

        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return list(text.encode())

    def rendered(think: ModelCall) -> str:
        return bytes(Prompter(Tokenizer()).ids(think)).decode()

    assert rendered(asking()).startswith("system: You may call") and "pick.one" in rendered(asking())
    assert rendered(asking(messages=[{"role": "system", "content": "Hush."}])).startswith("system: Hush.\n\nYou may")
    assert rendered(asking(tool_choice="auto")) == "user: go", "whoever leaves the choice tells of them itself"

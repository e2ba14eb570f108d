"""How a model's turn begins (`ModelCall.begin`): in the prompt of every worker that can say so, never in the value."""

from __future__ import annotations

import pytest

from plait.core.errors import FieldError
from plait.core.ops import Join, ModelCall, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.sampling import Sampling
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers._shared.prompt import Prompter
from plait.workers.http.request_body import RequestSpec, ServerDialect, build_body
from plait.workers.scripted import Reply
from tests.planners.scripted_runs import Prompts

ASK = ModelCall(prompt="Name three", chat=True, begin="1.", sampling=Sampling(max_tokens=5))


class Letters:
    """A tokenizer of characters."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [0] * add_special_tokens + [ord(char) for char in text]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, add_generation_prompt: bool, tokenize: bool) -> str:
        assert add_generation_prompt and not tokenize
        return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>"

    def get_added_vocab(self) -> dict[str, int]:
        return {}


def test_it_follows_the_templates_opening_of_the_turn() -> None:
    prompter = Prompter(Letters("yes"))
    assert prompter.text(prompter.ids(ASK)) == "<user>Name three<assistant>1."


def test_without_a_template_it_follows_the_prompt() -> None:
    prompter = Prompter(Letters(None))
    assert prompter.text(prompter.ids(ASK)) == "\0Name three1."


def test_a_server_that_takes_more_than_openais_fields_goes_on_from_it() -> None:
    fields = build_body(RequestSpec(ServerDialect("chat/completions", extras=True), "m", ASK, "Name three", True))
    assert fields["messages"][-1] == {"role": "assistant", "content": "1."}
    assert (fields["continue_final_message"], fields["add_generation_prompt"]) == (True, False)
    fields = build_body(RequestSpec(ServerDialect("chat/completions"), "m", ASK, "Name three", True))
    assert [each["role"] for each in fields["messages"]] == ["user"], "it would take it for a turn that is over"


def test_only_a_chat_begins_so() -> None:
    with pytest.raises(FieldError, match="goes with `chat`"):
        ModelCall(prompt="x", begin="1.")


async def test_a_context_that_is_continued_has_it() -> None:
    worker = Prompts(Reply(when="roots", text="done"), Reply(when=r"Name three1\.\Z", text=" roots"))
    steps = (
        Step(name="first", op=ASK.model_copy(update={"prompt": (Text(text="Name three"),)})),
        Step(name="second", op=ModelCall(prompt="\n2.", after="first")),
        Step(name="both", op=Join(merge=Plugin(name="collect")), needs=("first", "second")),
    )
    async with AsyncOrchestrator(workers=[worker]) as plait:
        answer = await plait.run(plan=Plan(steps=steps, output="both"))
    assert answer.value == [" roots", "done"]
    assert worker.prompts[-1] == "Name three1. roots\n2."

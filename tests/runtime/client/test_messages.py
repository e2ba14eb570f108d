"""Conversations through the client: what a model gets of them, and how they go on."""

from __future__ import annotations

from typing import Any

import pytest

from plait import Flow, Orchestrator, Plan, Step
from plait.core.errors import PlaitError, UsageError
from plait.core.events import Job
from plait.core.ops import ModelCall
from plait.workers.scripted import Reply, Scripted

ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Italy?"},
]


class Seen(Scripted):
    """Keeps the model calls that it gets."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(replies or [Reply(text="Rome.")])
        self.thinks: list[ModelCall] = []

    def run(self, job: Job) -> Any:
        assert isinstance(job.op, ModelCall)
        self.thinks.append(job.op)
        return super().run(job)


@pytest.fixture
def worker() -> Seen:
    return Seen()


def ask(worker: Scripted, text: str = "", **options: Any) -> Any:
    with Orchestrator(workers=[worker], journal="off") as plait:
        return plait.run(text, **options)


def said(think: ModelCall) -> str:
    return "".join(getattr(part, "text", "") for part in think.parts)


@pytest.mark.parametrize("planner", ["single", "sample:n=2", "adaptive", "refine"])
def test_every_planner_asks_within_the_conversation(worker: Seen, planner: str):
    answer = ask(worker, messages=ASKED, planner=planner)
    assert answer.answer == "Rome."
    for think in worker.thinks:
        assert [each.role for each in think.messages] == ["system", "user", "assistant"]
        assert said(think).startswith(
            "System: Be brief.\n\nUser: The capital of France?\n\nAssistant: Paris.\n\nUser: "
        )


def test_a_text_beside_messages_is_one_more(worker: Seen):
    ask(worker, "And of Spain?", messages=[*ASKED, {"role": "assistant", "content": "Rome."}])
    assert said(worker.thinks[0]).endswith("\n\nAssistant: Rome.\n\nUser: And of Spain?\n\nAssistant:")


def test_a_conversation_that_ends_with_a_result_is_asked_as_it_is(worker: Seen):
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "Paris"}
    ask(worker, messages=[ASKED[1], {"role": "assistant", "tool_calls": [call]}, result])
    (think,) = worker.thinks
    assert not think.prompt
    assert [each.role for each in think.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("planner", "length", "finish"),
    [("single", 2, "length"), ("sample:n=3", 2, "length"), ("single", 9, "stop"), ("sample:n=3", 9, "stop")],
)
def test_a_text_that_was_cut_says_so_whoever_chose_it(planner: str, length: int, finish: str):
    worker = Scripted([Reply(text="one two three four")])
    answer = ask(worker, "count", planner=planner, generation={"max_tokens": length})
    assert answer.finish == finish and answer.text == ("one two" if length == 2 else "one two three four")


def test_what_settings_say_of_answers_holds_where_a_request_and_its_planner_say_nothing(worker: Seen):
    usual: dict[str, Any] = {"temperature": 0.3, "max_tokens": 7, "top_p": 0.8, "thinking": "off"}
    with Orchestrator(workers=[worker], journal="off", **usual) as plait:
        plait.run("a")
        plait.run("b", generation={"temperature": 0.0})
        plait.run("c", planner="sample:n=1,answer.max_tokens=5")
        plait.run(
            "d",
            planner=lambda brief: Plan(steps=(Step(name="a", op=ModelCall(prompt=brief.request.text)),), output="a"),
        )
        plait.run("two and two and two", planner="decompose")  # its pieces have lengths of their own
    first, second, third, own, *pieces = [think.sampling for think in worker.thinks]
    assert (first.temperature, first.max_tokens, first.top_p) == (0.3, 7, 0.8) and first.thinking == "off"
    assert (second.temperature, second.max_tokens) == (0.0, 7), "a request goes before"
    assert (third.temperature, third.max_tokens) == (0.3, 5), "and so does an option of the planner's"
    assert own.temperature is None, "a plan of one's own says it itself"
    assert pieces and worker.thinks[0].prompt, "a planner without such an option is not refused"


def test_one_users_message_is_the_same_as_its_text(worker: Seen):
    ask(worker, messages=[ASKED[1]])
    ask(worker, "The capital of France?")
    assert worker.thinks[0] == worker.thinks[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": []}, "is empty"),
        ({"messages": 3}, "not a list of messages"),
        ({"messages": [{"role": "user", "content": "  "}]}, "no text"),
        ({"messages": [*ASKED[:3], {"role": "user", "content": "3 5 7 11 -> 24"}], "task": "countdown"}, "countdown"),
        ({"text": "x", "generation": {"logit_bias": {"a": 1}}}, "no token id"),
        ({"text": "x", "generation": {"logit_bias": 3}}, r"generation\.logit_bias.* valid dictionary"),
        ({"text": "x", "generation": {"extra_body": {"a": object()}}}, "no JSON value"),
        ({"text": "x", "generation": {"presence_penalty": 9}}, "presence_penalty"),
        ({"text": "x", "generation": {"stop": [""]}}, r"generation\.stop\[0\].* at least 1 character"),
        (
            {"text": "x", "planner": "takeover", "generation": {"max_tokens": 5}},
            "no option 'max_tokens' for its answer",
        ),
        ({"text": "x", "tools": [{"name": "a b"}]}, "not a function name"),
        ({"text": "x", "tools": ["f"]}, "'f'"),
        ({"text": "x", "tools": [{"name": "f"}], "tool_choice": "g"}, "tool_choice='g' must be"),
        ({"text": "x", "tool_choice": "required"}, "none were given in `tools`"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(worker: Seen, options: dict[str, Any], words: str):
    with pytest.raises(PlaitError, match=words):
        ask(worker, **options)
    assert not worker.thinks


def test_images_are_refused_by_a_worker_that_sees_none(worker: Seen):
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "https://x.y/z.png"}}]
    answer = ask(worker, messages=[{"role": "user", "content": parts}])
    assert answer.failure is not None
    assert "sees no images" in answer.failure.message


def test_what_is_asked_of_all_calls_reaches_them(worker: Seen):
    function = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
    ask(
        worker,
        "x",
        planner="sample:n=2",
        generation={
            "stop": "END",
            "presence_penalty": 0.5,
            "logit_bias": {"7": -100},
            "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": False},
            "extra_body": {"seed_of": 1},
        },
        tools=[function],
    )
    for think in worker.thinks:
        assert think.sampling.stop == ("END",)
        assert (think.sampling.presence_penalty, think.sampling.logit_bias) == (0.5, {"7": -100.0})
        assert (think.sampling.reasoning_effort, think.sampling.extra_body) == ("low", {"seed_of": 1})
        assert think.sampling.chat_template_kwargs == {"enable_thinking": False}
        assert [each.name for each in think.tools] == ["look"]


def test_reasoning_and_calls_stand_apart_in_the_answer():
    text = '<think>hm</think>Rome.<tool_call>{"name": "look", "arguments": {"at": "Rome"}}</tool_call>'
    answer = ask(Seen(Reply(text=text)), "x")
    assert answer.reasoning == "hm"
    assert answer.message.content == "Rome."
    assert answer.message.tool_calls[0].function.arguments == '{"at": "Rome"}'
    assert answer.answer.startswith("Rome.")


class TwoTurns(Flow):
    """Asks twice in one conversation."""

    async def run(self, ctx: Flow.Context, question: str) -> Any:
        first = await ctx.think(question)
        return await first.think("And of Spain?", chat=True)


def test_a_turn_that_is_added_goes_on_the_conversation():
    worker = Seen(Reply(when="Spain", text=" Madrid."), Reply(text=" Rome."))
    answer = ask(worker, messages=ASKED, planner=TwoTurns)
    assert answer.answer == "Madrid."
    first, second = worker.thinks
    assert said(second) == said(first) + " Rome.\n\nUser: And of Spain?\n\nAssistant:"
    assert [each.role for each in second.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert second.heard == 5


def test_wrong_kind_of_text_names_messages(worker: Seen):
    with pytest.raises(UsageError, match="messages="):
        ask(worker, ASKED)  # pyright: ignore[reportArgumentType]


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOLD = [{"role": "user", "content": "one"}, {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "it rains"}]  # fmt: skip


def test_what_the_user_says_after_a_tool_is_heard(worker: Seen):
    ask(worker, messages=[*TOLD, {"role": "user", "content": "one"}])
    ask(worker, "one", messages=TOLD)
    assert [said(think).count("one") for think in worker.thinks] == [2, 2], "the same words, said again"


@pytest.mark.parametrize(
    "last", [{"role": "assistant", "content": "hm"}, {"role": "system", "content": "hm"}, TOLD[-1]]
)
def test_the_model_speaks_after_whoever_spoke_last(worker: Seen, last: dict[str, Any]):
    ask(worker, messages=[*TOLD[:2], last] if last["role"] == "tool" else [TOLD[0], last])
    (think,) = worker.thinks
    assert think.messages[-1].role == last["role"] and not think.prompt
    assert said(think).count("one") == 1


@pytest.mark.parametrize("planner", ["single", "sample:n=2"])
def test_the_calls_that_answer_begin_and_are_formed_as_asked(worker: Seen, planner: str):
    form = {"kind": "choice", "spec": ["Rome", "Paris"]}
    ask(worker, "where?", planner=planner, begin="It is", form=form)
    for think in worker.thinks:
        assert think.begin == "It is"
        assert think.sampling.structured is not None and think.sampling.structured.spec == ["Rome", "Paris"]

"""Functions that a model may call by itself, over HTTP: how they are offered, and calls in many servers' shapes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator, tool
from plait.core.chat import assistant_message
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import Function, ModelCall, Text
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling
from plait.planners.tools.llmcompiler.tool_calls import NativeCalls
from plait.workers._shared.function_calls import ToolCallAssembler, sent_names
from plait.workers.http import Http

from .fake_server import FakeServer
from .http_kit import serving

SEARCH = Function(
    name="search.web", description="Look it up.", parameters={"type": "object", "properties": {"q": {"type": "string"}}}
)
WAYS = [
    {"tool_choice": "required", "parallel_tool_calls": True},
    {"tool_choice": "auto", "parallel_tool_calls": True},
    {"tool_choice": "auto"},
]


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    said = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return said if index is None else said | {"index": index}


ONE, TWO = '{"q": "a <b> \\"c\\" {"}', '{"q": "$1", "n": [1, {}]}'
SHAPES: dict[str, list[list[Any]]] = {
    "OpenAI": [
        [piece(0, "call_1", "search", "")],
        *[[piece(0, None, None, part)] for part in (ONE[:3], ONE[3:11], ONE[11:])],
        [piece(1, "call_2", "fetch", "")],
        *[[piece(1, None, None, part)] for part in (TWO[:9], TWO[9:])],
    ],
    "vLLM: empty ids, and the name again with the last piece": [
        [piece(0, "chatcmpl-tool-1", "search", "")],
        [piece(0, "", None, ONE[:5])],
        [piece(0, "chatcmpl-tool-1", "search", ONE[5:])],
        [piece(1, "chatcmpl-tool-2", "fetch", TWO[:1])],
        [piece(1, "chatcmpl-tool-2", "fetch", TWO[1:])],
    ],
    "vLLM, older: a new id with every piece": [
        [piece(0, "t1", "search", "")],
        [piece(0, "t2", None, ONE)],
        [piece(1, "t3", "fetch", "")],
        [piece(1, "t4", None, TWO)],
    ],
    "vLLM, required: two calls in one piece": [
        [piece(0, "t1", "search", ONE[:8])],
        [piece(0, None, None, ONE[8:]), piece(1, "t2", "fetch", TWO[:4])],
        [piece(1, None, None, TWO[4:])],
    ],
    "SGLang: empty names": [
        [piece(0, "call_a", "search", "")],
        [piece(0, None, "", ONE[:6])],
        [piece(0, None, "", ONE[6:])],
        [piece(1, "call_b", "fetch", "")],
        [piece(1, None, "", TWO)],
    ],
    "llama.cpp": [
        [piece(0, "x" * 32, "search", ONE[:2])],
        [piece(0, None, None, ONE[2:])],
        [piece(1, "y" * 32, "fetch", TWO)],
    ],
    "LMDeploy: one number for all": [
        [piece(0, "0", "search", "")],
        [piece(0, "0", None, ONE)],
        [piece(0, "1", "fetch", "")],
        [piece(0, "1", None, TWO)],
    ],
    "Ollama: whole calls without ids": [[piece(0, None, "search", ONE)], [piece(0, None, "fetch", TWO)]],
    "Gemini: whole calls without numbers": [[piece(None, "", "search", ONE)], [piece(None, "", "fetch", TWO)]],
    "without numbers, in pieces": [
        [piece(None, "a", "search", ONE[:4])],
        [piece(None, None, None, ONE[4:])],
        [piece(None, "b", "fetch", "")],
        [piece(None, "b", None, TWO)],
    ],
    "LiteLLM: numbers from 1": [[piece(1, "a", "search", ONE)], [piece(2, "b", "fetch", TWO)]],
    "arguments as objects": [[piece(0, "a", "search", json.loads(ONE)), piece(1, "b", "fetch", json.loads(TWO))]],
    "id after the name": [
        [piece(0, None, "search", None)],
        [piece(0, "a", None, ONE)],
        [piece(1, None, "fetch", None)],
        [piece(1, "b", None, TWO)],
    ],
}


@dataclass(eq=False)
class ToolServer(FakeServer):
    """Answers chat requests that offer functions with calls, and others with words."""

    calls: list[list[Any]] = field(default_factory=list)
    content: str = ""
    finish: str = "tool_calls"
    takes: int = 0
    """How much of `WAYS` is refused."""
    said: str = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    status: int = 400

    def _refusal(self, body: dict[str, Any], chat: bool, fault: Any) -> tuple[int, str] | None:
        if "tools" in body:
            assert chat, "a completion has no functions"
            way = {key: body[key] for key in ("tool_choice", "parallel_tool_calls") if key in body}
            if self.takes and WAYS.index(way) < self.takes:
                return self.status, self.said
        return super()._refusal(body, chat, fault)

    def _chunks(self, body: dict[str, Any], chat: bool, prompt_ids: list[int], tokens: list[str]) -> Iterator[Any]:
        if "tools" not in body or body.get("tool_choice") == "none":
            yield from super()._chunks(body, chat, prompt_ids, tokens)
            return
        deltas = [{"role": "assistant", "content": self.content or None}]
        deltas += [{"content": None, "tool_calls": each} for each in self.calls]
        for delta in deltas:
            yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]}
        if self.usage and body.get("stream_options"):
            yield {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 41}}

    def _whole(self, chunks: list[dict[str, Any]], prompt_ids: list[int], chat: bool) -> dict[str, Any]:
        if not any("tool_calls" in chunk["choices"][0].get("delta", {}) for chunk in chunks if chunk["choices"]):
            return super()._whole(chunks, prompt_ids, chat)
        calls = [call for each in self.calls for call in each]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return {"choices": [{"message": message, "finish_reason": self.finish}], "usage": {"completion_tokens": 41}}


def a_job(stream: bool = True, **fields: Any) -> Job:
    think = ModelCall(
        prompt=(Text(text="one two"),), chat=True, tools=(SEARCH,), stream=stream, sampling=Sampling(**fields)
    )
    return Job(attempt=1, run="r", step="r:s", op=think)


async def everything(worker: Http, job: Job) -> list[Progress | Result | Failure]:
    return [item async for item in worker.run(job)]


def read(text: str) -> list[dict[str, Any]]:
    """The calls in a text."""
    return [json.loads(part.partition("</tool_call>")[0]) for part in text.split("<tool_call>")[1:]]


BOTH = [{"name": "search", "arguments": json.loads(ONE)}, {"name": "fetch", "arguments": json.loads(TWO)}]


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls_are_put_together(shape: str) -> None:
    async with serving(ToolServer(calls=SHAPES[shape], ids=False, content="Let me see.")) as (server, worker):
        *deltas, end = await everything(worker, a_job())
    assert isinstance(end, Result) and end.finish == "stop" and end.usage.completion == 41
    assert end.text.startswith("Let me see.") and read(end.text) == BOTH
    assert "".join(each.text for each in deltas if isinstance(each, Progress)) == end.text
    (asked,) = server.asked()
    assert asked["tools"] == [
        {"type": "function", "function": SEARCH.model_dump() | {"name": "search_web"}},
    ]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("required", True)
    lines = NativeCalls()
    assert lines.feed(end.text).count("\n1. search(q=") == 1 and lines.count == 2, "the planner reads them"


@pytest.mark.parametrize("choice", ["auto", "required", "search.web"])
async def test_what_a_step_says_of_its_functions_is_told_as_it_is(choice: str) -> None:
    job = a_job()
    assert isinstance(job.op, ModelCall)
    job = replace(job, op=job.op.model_copy(update={"tool_choice": choice, "parallel_tool_calls": False}))
    async with serving(ToolServer(calls=SHAPES["OpenAI"], ids=False)) as (server, worker):
        *_, end = await everything(worker, job)
    (asked,) = server.asked()
    named = {"type": "function", "function": {"name": "search_web"}}
    assert asked["tool_choice"] == (named if choice == "search.web" else choice)
    assert asked["parallel_tool_calls"] is False
    assert isinstance(end, Result) and read(end.text) == BOTH[:1], "a server that writes two all the same"


async def test_a_whole_answer_has_its_calls_too() -> None:
    whole = [[piece(None, "a", "search", ONE), piece(None, "b", "fetch", TWO)]]
    async with serving(ToolServer(calls=whole, ids=False), stream_above_tokens=512) as (server, worker):
        (end,) = await everything(worker, a_job(stream=False, max_tokens=8))
    assert server.asked()[0]["stream"] is False
    assert isinstance(end, Result) and read(end.text) == BOTH


@given(st.lists(st.integers(1, 9), max_size=12))
def test_any_cut_of_the_arguments_gives_the_same_call(sizes: list[int]) -> None:
    calls, rest = ToolCallAssembler(), ONE
    text = calls.feed([piece(0, "a", "search", "")])
    for size in sizes:
        text += calls.feed([piece(0, None, None, rest[:size])])
        rest = rest[size:]
    text += calls.feed([piece(0, None, None, rest)])
    assert read(text) == BOTH[:1], "told as soon as its brackets are closed"
    assert calls.close() == ""


def test_the_arguments_come_as_they_are_written() -> None:
    calls = ToolCallAssembler()
    parts = ['{"name":', ' "Rome",', ' "tags":["<a>', '\\u00e9"]', "}"]
    texts = [calls.feed([piece(0, "a", "save", parts[0])])]
    texts += [calls.feed([piece(0, None, None, part)]) for part in parts[1:]]
    assert texts == [
        '<tool_call>{"name": "save", "arguments": {"name": ',
        '"Rome", ', '"tags": ["\\u003ca>', 'é"]', "}}</tool_call>\n",
    ]  # fmt: skip
    assert read("".join(texts)) == [{"name": "save", "arguments": {"name": "Rome", "tags": ["<a>é"]}}]


def test_a_call_that_is_cut_stays_open() -> None:
    calls = ToolCallAssembler()
    text = calls.feed([piece(0, "a", "save", '{"name": "Ro')]) + calls.close()
    assert text == '<tool_call>{"name": "save", "arguments": {"name": "Ro'
    assert not assistant_message(text).tool_calls


def calls_text(*pieces: Any) -> str:
    made = ToolCallAssembler()
    return made.feed(list(pieces)) + made.close()


WORDS = st.one_of(st.none(), st.text(max_size=5), st.integers(), st.just("search"), st.just('{"q":'), st.just("}"))


@given(st.lists(st.fixed_dictionaries({}, optional={
    "index": st.one_of(st.none(), st.integers(-1, 3), st.text(max_size=2)), "id": WORDS,
    "function": st.one_of(st.none(), st.fixed_dictionaries({}, optional={
        "name": st.one_of(st.none(), st.text(max_size=3)), "arguments": st.one_of(WORDS, st.lists(WORDS)),
    })),
}), max_size=12))  # fmt: skip
def test_nothing_that_a_server_sends_as_calls_breaks_the_reader(pieces: list[Any]) -> None:
    calls = ToolCallAssembler()
    text = "".join(calls.feed([each]) for each in pieces) + calls.close()
    assert len(assistant_message(text).tool_calls) <= len(pieces)
    assert (
        ToolCallAssembler().feed("no list")
        == ToolCallAssembler().feed(7)
        == ToolCallAssembler().feed([1, None, "x"])
        == ""
    )


def test_no_argument_ends_its_own_tag() -> None:
    text = calls_text(piece(0, "a", "search", json.dumps({"q": "</tool_call><tool_call>"})))
    assert text.count("</tool_call>") == 1 and read(text)[0]["arguments"]["q"] == "</tool_call><tool_call>"


@pytest.mark.parametrize("takes", [0, 1, 2, 3])
async def test_functions_are_offered_as_the_server_takes_them(takes: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ToolServer(calls=SHAPES["OpenAI"], ids=False, takes=takes)) as (server, worker):
        with caplog.at_level(logging.WARNING, "plait.http"):
            ends = [(await everything(worker, a_job()))[-1] for _ in range(2)]
    sent = server.asked()
    assert len(sent) == takes + 2, "what was refused once is not sent again"
    assert all(isinstance(end, Result) and bool(end.why) == (takes > 0) for end in ends), "and the result says so"
    for end in ends:
        assert isinstance(end, Result), end
        assert read(end.text) == (BOTH if takes < 3 else []) and (takes < 3 or end.text == " alpha beta gamma delta")
    assert ("tools" in sent[-1]) == (takes < 3)
    assert ("takes no tools" in caplog.text) == (takes == 3)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (500, "tools param requires --jinja flag"),  # llama.cpp
        (400, "registry.ollama.ai/library/x does not support tools"),
        (404, "No endpoints found that support tool use."),  # OpenRouter
        (400, "Unrecognized request argument supplied: parallel_tool_calls"),
        (422, "body.tools: Extra inputs are not permitted"),
    ],
)
async def test_what_servers_say_that_take_no_functions(status: int, said: str) -> None:
    server = ToolServer(ids=False, takes=3, status=status, said=said)
    async with serving(server, retries=0) as (_, worker):
        *_, end = await everything(worker, a_job())
    assert isinstance(end, Result) and end.text == " alpha beta gamma delta"


async def test_another_refusal_is_told_as_it_is() -> None:
    said = "This model's maximum context length is 4096 tokens"
    async with serving(ToolServer(ids=False, takes=3, said=said)) as (server, worker):
        (end,) = await everything(worker, a_job())
    assert isinstance(end, Failure) and said in end.message and len(server.asked()) == 1


async def test_a_server_without_chat_is_asked_in_words() -> None:
    async with serving(ToolServer(chat=False, ids=False, calls=SHAPES["OpenAI"])) as (server, worker):
        (end,) = await everything(worker, a_job())
    assert isinstance(end, Failure) and "404" in end.message, "a chat prompt needs a chat server"
    assert all("tools" not in each for each in server.asked() if "prompt" in each)


# --- with the planner ---


@tool
def search(q: str) -> str:
    """Look it up."""
    return f"page of {q}"


@tool
def fetch(q: str, n: list[Any] | None = None) -> str:
    """Fetch it."""
    return f"<{q}>"


async def run(server: ToolServer) -> tuple[Any, ToolServer]:
    server.reply = lambda prompt: (
        "Action: Finish(done)" if "Answer the question from" in prompt else "1. search(w) 2. join()"
    )
    async with serving(server) as (_, worker), AsyncOrchestrator(workers=[worker], tools=[search, fetch]) as plait:
        return await plait.run("look", planner="llmcompiler:dialect=native"), server


def seen(server: ToolServer) -> str:
    """What the joiner was asked."""
    return next(
        each["messages"][0]["content"] for each in reversed(server.asked()) if "Answer the question from" in str(each)
    )


@pytest.mark.parametrize("shape", ["OpenAI", "SGLang: empty names", "LMDeploy: one number for all"])
async def test_the_calls_are_the_plans_steps(shape: str) -> None:
    answer, server = await run(ToolServer(ids=False, calls=SHAPES[shape]))
    assert (answer.status, answer.answer) == ("done", "done")
    rows = {row.name: row for row in answer.report.steps if row.kind == "call"}
    assert {name: row.state for name, row in rows.items()} == {"1": "done", "2": "done"}
    assert rows["1"].step in rows["2"].needs, "`$1` is the first call's result"
    assert 'page of a <b> "c" {' in seen(server)


async def test_malformed_arguments_are_sent_back_and_never_run() -> None:
    bad = [[piece(0, "a", "search", ONE)], [piece(1, "b", "fetch", '{"q": "half')]]
    server = ToolServer(ids=False, calls=bad, finish="length")
    answer, server = await run(server)
    assert answer.status == "done"
    calls = [row.name for row in answer.report.steps if row.kind == "call"]
    assert "1" in calls, "what was whole is run"
    repair = next(each["messages"][0]["content"] for each in server.asked() if "could not be run" in str(each))
    assert '2. fetch({"q": "half): its arguments are not a JSON object' in repair
    assert not [row for row in answer.report.steps if row.kind == "call" and "half" in row.label]


async def test_a_server_that_takes_no_functions_writes_its_plan_in_words() -> None:
    answer, server = await run(ToolServer(ids=False, takes=3))
    assert answer.status == "done"
    assert [row.label for row in answer.report.steps if row.kind == "call"][:1] == ["search(w)"]
    assert "page of w" in seen(server)


async def test_a_call_starts_while_the_next_is_being_written() -> None:
    started = asyncio.Event()

    @tool
    async def note(what: str) -> str:
        """Note it."""
        started.set()
        return what

    class Waiting(ToolServer):
        async def _generate(self, writer: Any, body: Any, chat: bool, fault: Any) -> None:
            if "tools" not in body or body.get("tool_choice") == "none":
                await super()._generate(writer, body, chat, fault)
                return
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for chunk in self._chunks(body, chat, [1], []):
                calls = (chunk["choices"] or [{}])[0].get("delta", {}).get("tool_calls") or [{}]
                if calls[0].get("index") == 1:
                    await asyncio.wait_for(started.wait(), 300)  # hangs if the first call has not begun by now
                self._chunk(writer, f"data: {json.dumps(chunk)}\n\n")
            self._chunk(writer, "data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")

    calls = [[piece(0, "a", "note", '{"what": "x"}')], [piece(1, "b", "note", '{"what": "y"}')]]
    server = Waiting(ids=False, calls=calls)
    server.reply = lambda prompt: "Action: Finish(done)"
    async with serving(server) as (_, worker), AsyncOrchestrator(workers=[worker], tools=[note]) as plait:
        answer = await plait.run("look", planner="llmcompiler:dialect=native")
    assert answer.status == "done" and started.is_set()


NAMES = st.lists(
    st.text("ab._-", min_size=1, max_size=4)
    | st.sampled_from(["x" * 64 + ".a", "x" * 64 + ".b", "x" * 64, "mul_add_2"]),
    unique=True,
)


@given(NAMES)
def test_names_of_functions_go_out_each_as_another_and_come_back(names: list[str]) -> None:
    think = ModelCall(prompt="p", chat=True, tools=tuple(Function(name=each, description="") for each in names))
    sent = sent_names(think)
    assert list(sent) == names and len(set(sent.values())) == len(names)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", each) for each in sent.values())
    assert all(sent[each] == each for each in names if re.fullmatch("[A-Za-z0-9_-]{1,64}", each))
    back = ToolCallAssembler(names={each: own for own, each in sent.items()})
    for name in names:
        assert f'"name": "{name}"' in back.feed([piece(None, name, sent[name], "{}")]) + back.close()


@pytest.mark.parametrize("called", ["math.add", "math_add"])
async def test_of_two_tools_that_differ_by_a_dot_the_one_that_was_meant_is_called(called: str) -> None:
    made: list[str] = []

    def add(a: int) -> int:
        """Add one."""
        made.append("math.add")
        return a + 1

    def other(a: int) -> int:
        """Do something else."""
        made.append("math_add")
        return -a

    async def wild(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        offered = {each["function"]["description"]: each["function"]["name"] for each in body.get("tools", ())}
        wanted = offered.get("Add one." if called == "math.add" else "Do something else.", "")
        done = any(each["role"] == "tool" for each in body["messages"])
        message = {"content": "answer: 4"} if done else {"tool_calls": [piece(0, "c", wanted, '{"a": 3}')]}
        if done:
            spoken = next(each for each in body["messages"] if each.get("tool_calls"))
            assert spoken["tool_calls"][0]["function"]["name"] == wanted, "as the server knows it"
        whole = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(whole) + whole)

    async with serving(FakeServer(ids=False, completions=False)) as (server, worker):
        server.wild = wild
        tools = [tool(add, name="math.add"), tool(other, name="math_add")]
        async with AsyncOrchestrator(workers=[worker], tools=tools, journal="off") as plait:
            answer = await plait.run("What?", planner="react")
    assert (answer.answer, made) == ("4", [called]), answer.failure


@pytest.mark.parametrize("takes", [0, 3])
async def test_an_agents_tools_are_described_once(takes: int) -> None:
    """As functions, and in words where the server takes none."""
    server = ToolServer(ids=False, calls=SHAPES["OpenAI"], takes=takes)
    async with serving(server) as (_, worker), AsyncOrchestrator(workers=[worker], tools=[search, fetch]) as plait:
        answer = await plait.run("look", planner="react:rounds=2")
    assert answer.status == "done"
    taken = next(body for body in server.asked() if ("tools" in body) == (takes == 0))
    system = taken["messages"][0]["content"]
    assert "side by side" in system
    assert ('"parameters"' in system, "<tool_call>" in system) == (takes > 0, takes > 0)

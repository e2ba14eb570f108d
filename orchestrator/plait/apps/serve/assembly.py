"""A response that grows: the news of a run as the events and the object of the Responses API."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ...core.chat import MessageToolCall
from ...core.result import Usage
from ...runtime.client.answer import Answer
from .errors import ApiError
from .http import sse
from .offered import input_of
from .telling import (
    AnswerText,
    Ended,
    StepBegan,
    StepEnded,
    StepSaid,
    Thought,
    Told,
    step_of,
    tokens_of,
    written,
)

__all__ = ["Assembly", "response_usage"]

_THINKING = ""
"""Among the branches: what the model thinks before it answers."""


class Assembly:
    """Fills `response` in and yields its events."""

    def __init__(self, response: dict[str, Any], must_call: bool = False, likeliest: int | None = None) -> None:
        self.response = response
        self._likeliest = likeliest
        self._logprobs: list[dict[str, Any]] = []
        self._must_call = must_call
        self._number = -1
        self._branches: dict[str, tuple[int, dict[str, Any]]] = {}
        self._message: tuple[int, dict[str, Any]] | None = None
        self._text: list[str] = []
        self._thoughts: list[str] = []

    def begin(self) -> Iterator[bytes]:
        """Yield the first events."""
        yield self._event("response.created", response=self.response)
        self.response["status"] = "in_progress"
        yield self._event("response.in_progress", response=self.response)

    def take(self, news: Told) -> Iterator[bytes]:
        """Yield what follows from a piece of news."""
        match news:
            case AnswerText(text):
                yield from self._said(text)
            case Thought(text):
                yield from self._thought(text)
            case StepBegan(step):
                place, item = self._added({**_reasoning(step.step), "plait": step_of(step)})
                self._branches[step.step] = place, item
                yield self._event("response.output_item.added", output_index=place, item=item)
            case StepSaid(step, text):
                yield self._event("response.reasoning_text.delta", **self._at(step), delta=text)
            case StepEnded(step):
                yield from self._branch_ended(step)
            case Ended():
                yield from self._ended(news)

    def end(self, answer: Answer, steps: bool) -> None:
        """Fill in the response at once, for a run without a follower."""
        for step in answer.trace if steps else ():
            if step.kind != "join":
                item = {**_reasoning(step.step), "status": "completed", "plait": step_of(step)}
                self._added({**item, "content": [{"type": "reasoning_text", "text": written(step)}]})
        for _ in self._ended(Ended(answer, False)):
            pass

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _added(self, item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.response["output"].append(item)
        return len(self.response["output"]) - 1, item

    def _at(self, step: str) -> dict[str, Any]:
        place, item = self._branches[step]
        return {"item_id": item["id"], "output_index": place, "content_index": 0}

    def _said(self, text: str) -> Iterator[bytes]:
        if self._message is None:
            yield from self._thought_whole()
            self._message = place, item = self._added(_message(self.response["id"]))
            yield self._event("response.output_item.added", output_index=place, item=item)
            yield self._event("response.content_part.added", **self._in_message(), part=_part(""))
        self._text.append(text)
        yield self._event("response.output_text.delta", **self._in_message(), delta=text, logprobs=[])

    def _thought(self, text: str) -> Iterator[bytes]:
        if _THINKING not in self._branches:
            self._branches[_THINKING] = place, item = self._added(_reasoning(self.response["id"]))
            yield self._event("response.output_item.added", output_index=place, item=item)
        self._thoughts.append(text)
        yield self._event("response.reasoning_text.delta", **self._at(_THINKING), delta=text)

    def _thought_whole(self) -> Iterator[bytes]:
        branch = self._branches.pop(_THINKING, None)
        if branch is not None:
            (place, item), text = branch, "".join(self._thoughts)
            item.update(status="completed", content=[{"type": "reasoning_text", "text": text}])
            at = {"item_id": item["id"], "output_index": place, "content_index": 0}
            yield self._event("response.reasoning_text.done", **at, text=text)
            yield self._event("response.output_item.done", output_index=place, item=item)

    def _called(self, call: MessageToolCall) -> Iterator[bytes]:
        function, head = call.function, {"call_id": call.id, "name": call.function.name}
        if any(tool["type"] == "custom" and tool["name"] == function.name for tool in self.response.get("tools") or ()):
            yield from self._called_custom(call, head)
            return
        item = {"type": "function_call", "id": f"fc_{self.response['id']}_{call.id}", **head, "arguments": "",
                "status": "in_progress"}  # fmt: skip
        place, item = self._added(item)
        yield self._event("response.output_item.added", output_index=place, item=item)
        at = {"item_id": item["id"], "output_index": place}
        yield self._event("response.function_call_arguments.delta", **at, delta=function.arguments)
        yield self._event(
            "response.function_call_arguments.done", **at, name=function.name, arguments=function.arguments
        )
        item.update(arguments=function.arguments, status="completed")
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _called_custom(self, call: MessageToolCall, head: dict[str, Any]) -> Iterator[bytes]:
        text = input_of(call)
        place, item = self._added(
            {"type": "custom_tool_call", "id": f"ctc_{self.response['id']}_{call.id}", **head, "input": ""}
        )
        yield self._event("response.output_item.added", output_index=place, item=item)
        at = {"item_id": item["id"], "output_index": place}
        yield self._event("response.custom_tool_call_input.delta", **at, delta=text)
        yield self._event("response.custom_tool_call_input.done", **at, input=text)
        item["input"] = text
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _in_message(self) -> dict[str, Any]:
        assert self._message is not None
        place, item = self._message
        return {"item_id": item["id"], "output_index": place, "content_index": 0}

    def _branch_ended(self, step: Any) -> Iterator[bytes]:
        place, item = self._branches[step.step]
        text = written(step)
        item.update(status="completed" if step.state == "done" else "incomplete", plait=step_of(step))
        item["content"] = [{"type": "reasoning_text", "text": text}]
        yield self._event("response.reasoning_text.done", **self._at(step.step), text=text)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _ended(self, news: Ended) -> Iterator[bytes]:
        answer, response = news.answer, self.response
        response["usage"] = response_usage(answer.usage)
        response["completed_at"] = time.time()
        response["plait"] = {"run": answer.run, "status": answer.status, "answer": answer.answer,
                             "verified": answer.verified, "why": answer.why}  # fmt: skip
        try:
            news.check(self._must_call)
            self._logprobs = [] if self._likeliest is None else tokens_of(answer)
        except ApiError as error:
            cancelled = answer.status == "cancelled"
            response["status"] = "cancelled" if cancelled else "failed"
            if not cancelled:
                response["error"] = {"code": "server_error", "message": error.message}
            yield self._event("response.failed", response=response)
            return
        turn = answer.message
        if self._message is None and turn.reasoning and not self._thoughts:
            yield from self._thought(turn.reasoning)
        yield from self._thought_whole()
        if self._message is None and (turn.text or not turn.tool_calls):
            yield from self._said(turn.text)
        if self._message is not None:
            yield from self._message_done(answer)
        for call in turn.tool_calls:
            yield from self._called(call)
        whole = not answer.cut
        self.response["status"] = "completed" if whole else "incomplete"
        if not whole:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def _message_done(self, answer: Answer) -> Iterator[bytes]:
        assert self._message is not None
        place, item = self._message
        whole = not answer.cut
        text = "".join(self._text)
        item.update(status="completed" if whole else "incomplete", content=[_part(text, self._logprobs)])
        yield self._event("response.output_text.done", **self._in_message(), text=text, logprobs=self._logprobs)
        yield self._event("response.content_part.done", **self._in_message(), part=_part(text, self._logprobs))
        yield self._event("response.output_item.done", output_index=place, item=item)


def response_usage(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a run in the form of responses; `cancelled_tokens` is ours."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.thoughts, "cancelled_tokens": usage.cancelled},
        "total_tokens": usage.prompt + usage.completion,
    }


def _message(response: str) -> dict[str, Any]:
    name = f"msg_{response.removeprefix('resp_')}"
    return {"type": "message", "id": name, "status": "in_progress", "role": "assistant", "content": []}


def _reasoning(step: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{step}", "summary": [], "content": [], "status": "in_progress"}


def _part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

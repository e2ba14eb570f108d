"""A response as it grows: the object and the events of the Responses API, made of the events of a choice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from plait.core.chat import MessageToolCall
from plait.core.result import Usage
from plait.runtime.client.answer import Answer

from . import stream_events as ev
from .client_tools import find_tool, read_input
from .dialect import Record, StreamWriter, describe_answer, describe_step


class ResponseWriter(StreamWriter):
    """Makes the events of a response, and fills in `response`. Each part is an item of its output."""

    def __init__(self, response: Record) -> None:
        self.response, self._first = response, len(response["output"])
        self._number = -1

    def begin(self) -> Iterator[Record]:
        """Yield the first events."""
        yield self._event("created", response=self.response)
        self.response["status"] = "in_progress"
        yield self._event("in_progress", response=self.response)
        for place, item in enumerate(self.response["output"]):  # a compaction, before the run
            yield self._event("output_item.added", output_index=place, item=item)
            yield self._event("output_item.done", output_index=place, item=item)

    def add(self, place: int, event: ev.ChoiceEvent) -> Iterator[Record]:
        """Yield the records of an event."""
        match event:
            case ev.PartBegan(part):
                item = self._item(part)
                self.response["output"].append(item)
                yield self._event("output_item.added", output_index=self._first + part.index, item=item)
                if isinstance(part, ev.AnswerText):
                    yield self._event("content_part.added", **self._at(part), part=_text(""))
            case ev.PartDelta(part, text):
                yield from self._grow(part, text)
            case ev.PartEnded(part):
                yield from self._complete(event)
                yield self._event("output_item.done", output_index=self._first + part.index, item=self._item_of(part))
            case ev.QuestionAsked(question):
                question = {"question": question.model_dump(mode="json")}
                yield self._event("in_progress", response=self.response, plait=question)
            case ev.ChoiceEnded(answer):
                self._summarize(answer)
                self.response["status"] = "incomplete" if answer.cut else "completed"
                if answer.cut:
                    self.response["incomplete_details"] = {"reason": "max_output_tokens"}
                yield self._event(self.response["status"], response=self.response)
            case ev.ChoiceFailed(answer, error):
                self._summarize(answer)
                self.response["status"] = "cancelled" if answer.status == "cancelled" else "failed"
                if answer.status != "cancelled":
                    self.response["error"] = {"code": "server_error", "message": error.message}
                yield self._event("failed", response=self.response)
            case _:
                pass

    def _grow(self, part: ev.AnswerPart, text: str) -> Iterator[Record]:
        match part:
            case ev.AnswerText():
                yield self._event("output_text.delta", **self._at(part), delta=text, logprobs=[])
            case ev.CallPart(call=call):
                if not self._is_custom(call):
                    yield self._event("function_call_arguments.delta", **self._at(part), delta=text)
            case _:
                yield self._event("reasoning_text.delta", **self._at(part), delta=text)

    def _complete(self, ended: ev.PartEnded) -> Iterator[Record]:
        """Fill in the item of a part, and yield the events of its content."""
        part, at, item = ended.part, self._at(ended.part), self._item_of(ended.part)
        match part:
            case ev.AnswerText():
                text = part.text
                if not text:
                    yield self._event("output_text.delta", **at, delta="", logprobs=[])
                content = _text(text, ended.tokens)
                item.update(status="incomplete" if ended.is_cut else "completed", content=[content])
                yield self._event("output_text.done", **at, text=text, logprobs=ended.tokens)
                yield self._event("content_part.done", **at, part=content)
            case ev.CallPart(call=call) if self._is_custom(call):
                item["input"] = text = read_input(call)
                yield self._event("custom_tool_call_input.delta", **at, delta=text)
                yield self._event("custom_tool_call_input.done", **at, input=text)
            case ev.CallPart():
                text = part.text
                yield self._event("function_call_arguments.done", **at, name=item["name"], arguments=text)
                item.update(arguments=text, status="completed")
            case _:
                item["status"] = "completed"
                if isinstance(part, ev.StepPart):
                    item["status"] = "completed" if part.step.state == "done" else "incomplete"
                    item["plait"] = describe_step(part.step)
                item["content"] = [{"type": "reasoning_text", "text": part.text}]
                yield self._event("reasoning_text.done", **at, text=part.text)

    def _item(self, part: ev.AnswerPart) -> Record:
        """Return the item of a part that begins."""
        name = self.response["id"]
        match part:
            case ev.AnswerText():
                name = f"msg_{name.removeprefix('resp_')}" + (f"_{part.index}" if part.follows else "")
                return {"type": "message", "id": name, "status": "in_progress", "role": "assistant", "content": []}
            case ev.CallPart(call=call):
                head = {"call_id": call.id, **find_tool(call.function.name, self.response.get("tools") or ())[1]}
                if self._is_custom(call):
                    return {"type": "custom_tool_call", "id": f"ctc_{name}_{call.id}", **head, "input": ""}
                head["arguments"] = ""
                return {"type": "function_call", "id": f"fc_{name}_{call.id}", **head, "status": "in_progress"}
            case _:
                step = {"plait": describe_step(part.step)} if isinstance(part, ev.StepPart) else {}
                fields = {"summary": [], "content": [], "status": "in_progress"}
                return {"type": "reasoning", "id": f"rs_{part.id or name}", **fields, **step}

    def _item_of(self, part: ev.AnswerPart) -> Record:
        return self.response["output"][self._first + part.index]

    def _at(self, part: ev.AnswerPart) -> Record:
        at = {"item_id": self._item_of(part)["id"], "output_index": self._first + part.index}
        return at if isinstance(part, ev.CallPart) else {**at, "content_index": 0}

    def _is_custom(self, call: MessageToolCall) -> bool:
        return find_tool(call.function.name, self.response.get("tools") or ())[0] == "custom"

    def _summarize(self, answer: Answer) -> None:
        plait = describe_answer(answer)
        del plait["critical_path_tokens"], plait["seconds"]
        self.response.update(usage=_usage(answer.usage), completed_at=time.time(), plait=plait)

    def _event(self, kind: str, **fields: Any) -> Record:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number, **fields}


def _usage(usage: Usage) -> Record:
    """Return the tokens of a run in the format of responses; `cancelled_tokens` is ours."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.thoughts, "cancelled_tokens": usage.cancelled},
        "total_tokens": usage.prompt + usage.completion,
    }


def _text(text: str, tokens: Any = ()) -> Record:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(tokens)}

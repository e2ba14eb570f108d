"""The body of `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, PrivateAttr

from plait.core.request import Request

from .bodies import MAX_MESSAGES, MAX_TOOLS, BodyTable, ServedStrategy, body_with
from .client_tools import ToolBody
from .errors import ApiError, invalid
from .structured_output import ClientObject


class TextFormat(ClientObject):
    """`text.format` of a response."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")


class ContextManagement(ClientObject):
    """An entry of `context_management`."""

    type: Literal["compaction"]
    compact_threshold: int = Field(ge=1)


class TextConfig(ClientObject):
    """`text` of a response."""

    format: TextFormat | None = None


LOGPROBS = "message.output_text.logprobs"
"""The value of `include` for them."""


class ResponseBody(
    body_with(
        "conversation prompt image max_tool_calls user safety_identifier service_tier prompt_cache_key "
        "prompt_cache_retention prompt_cache_options moderation access_programs "
        "background_options truncation"
    )
):
    """The body of `POST /v1/responses`."""

    table = BodyTable("responses", {"max_tokens": "max_output_tokens"}, answer_format=("text.format", "schema_"))
    input: str | Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)] = ""
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    background: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ToolBody] | None, Field(max_length=MAX_TOOLS)] = None
    include: list[str] | None = None
    stream_options: JsonValue = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning: dict[str, JsonValue] | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None

    _messages: Sequence[Mapping[str, Any]] = PrivateAttr(())

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if self.background and self.store is False:
            raise invalid("a response in the background has to be stored: leave `store` out", "store")
        super().check()
        if not self.input and self.previous_response_id is None and self.plait.plan is None:
            raise ApiError(400, "`input` is missing", param="input", code="missing_required_parameter")

    def read_sampling(self) -> dict[str, object]:
        """Return the sampling fields of a request."""
        effort = (self.reasoning or {}).get("effort")
        likeliest = self.top_logprobs
        if likeliest is None and LOGPROBS in (self.include or ()):
            likeliest = 0
        return {
            **super().read_sampling(),
            "reasoning_effort": effort if isinstance(effort, str) else None,
            "top_logprobs": likeliest,
        }

    def read_conversation(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the messages, and the text that the answer continues: a last assistant message that is marked as
        incomplete, as in vLLM."""
        messages = self._messages
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        last = self.input[-1] if isinstance(self.input, list) and self.input else {}
        partial = last.get("status") in ("in_progress", "incomplete") and last.get("role") == "assistant"
        if partial and len(messages) > 1 and isinstance(begin := messages[-1].get("content"), str):
            return [*first, *messages[:-1]], begin
        return [*first, *messages], ""

    def request_after(self, messages: Sequence[Mapping[str, Any]], strategy: ServedStrategy) -> Request:
        """Return the request for a conversation that ends with the input."""
        self._messages = messages
        return self.request(strategy)

"""The same agent with LlamaIndex's memory that summarises. Needs an environment with `llama-index-core` 0.14.

python experiments/compaction/peer_llama_index.py
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llama_index.core.llms import ChatMessage, ChatResponse, CustomLLM, LLMMetadata, MessageRole
from llama_index.core.memory import ChatSummaryMemoryBuffer
from workload import (
    CONTEXT,
    PAGES,
    QUESTION,
    THOUGHT,
    THRESHOLD,
    Meter,
    codes_in,
    last_page,
    page_text,
    summary_of,
    words,
)

SYSTEM = "system: Call read for the next page."


def rendered(messages: list[ChatMessage]) -> str:
    """Return a conversation as the model reads it."""
    return "".join(f"\n\n{message.role.value}: {message.content}" for message in messages)


class Summariser(CustomLLM):
    """The model that the memory asks for summaries."""

    meter: Any

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=CONTEXT)

    def chat(self, messages: list[ChatMessage], **options: Any) -> ChatResponse:
        prompt = rendered(messages)
        text = summary_of(prompt)
        self.meter.count(prompt, text, summary=True)
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text))

    def complete(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def stream_complete(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def run(meter: Meter) -> str | None:
    """Run the agent, and return its answer."""
    memory = ChatSummaryMemoryBuffer.from_defaults(
        llm=Summariser(meter=meter), token_limit=THRESHOLD, tokenizer_fn=words
    )
    memory.put(ChatMessage(role=MessageRole.USER, content=QUESTION))
    for _ in range(2 * PAGES):
        prompt = SYSTEM + rendered(memory.get())
        if len(words(prompt)) >= CONTEXT:
            return None
        last = last_page(prompt)
        if last >= PAGES:
            text = f"The codes are {', '.join(codes_in(prompt))}."
            meter.count(prompt, text)
            return text
        call = json.dumps({"name": "read", "arguments": {"page": last + 1}})
        text = f"{THOUGHT}<tool_call>{call}</tool_call>"
        meter.count(prompt, text)
        memory.put(ChatMessage(role=MessageRole.ASSISTANT, content=text))
        memory.put(ChatMessage(role=MessageRole.TOOL, content=page_text(last + 1)))
    return None


def main() -> None:
    """Run the agent, and write the row."""
    meter = Meter()
    row = meter.row("LlamaIndex ChatSummaryMemoryBuffer", run(meter))
    print(json.dumps(row))
    (Path(__file__).parent / "data" / "llama_index.jsonl").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

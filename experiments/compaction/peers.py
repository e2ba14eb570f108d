"""The same agent in LangChain, with its two middlewares. Needs an environment with `langchain` 1.5; run it as a file.

python experiments/compaction/peers.py
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from workload import (
    CONTEXT,
    KEEP,
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


def written_call(arguments: Any) -> str:
    """Return a call as the model writes it."""
    return f"<tool_call>{json.dumps({'name': 'read', 'arguments': arguments})}</tool_call>"


def rendered(messages: list[BaseMessage]) -> str:
    """Return a conversation as the model reads it."""
    pieces: list[str] = []
    for message in messages:
        calls = [
            json.dumps({"name": call["name"], "arguments": call["args"]}) for call in getattr(message, "tool_calls", [])
        ]
        pieces.append(
            f"\n\n{message.type}: {message.text}" + "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        )
    return "".join(pieces)


class Reader(BaseChatModel):
    """The model of the workload."""

    meter: Any
    summarises: bool = False

    @property
    def _llm_type(self) -> str:
        return "reader"

    def bind_tools(self, tools: Any, **options: Any) -> Reader:
        return self

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        return len(words(rendered(messages)))

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        prompt = rendered(messages)
        if len(words(prompt)) >= CONTEXT:
            raise RuntimeError(f"the prompt has {len(words(prompt))} tokens")
        last, calls = last_page(prompt), []
        if self.summarises:
            text = summary_of(prompt)
        elif last >= PAGES:
            text = f"The codes are {', '.join(codes_in(prompt))}."
        else:
            text = THOUGHT
            calls = [{"name": "read", "args": {"page": last + 1}, "id": f"call{last + 1:05d}"}]
        written = text + "".join(written_call(call["args"]) for call in calls)
        self.meter.count(prompt, written, self.summarises)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=text, tool_calls=calls))])


@tool
def read(page: int) -> str:
    """Read a page."""
    return page_text(page)


def middlewares(meter: Meter) -> dict[str, list[Any]]:
    """Return the contenders."""

    def counted(messages: Any) -> int:
        return len(words(rendered(list(messages))))

    def summarising(**more: Any) -> SummarizationMiddleware:
        return SummarizationMiddleware(Reader(meter=meter, summarises=True), trigger=("tokens", THRESHOLD),
                                       keep=("messages", 2 * KEEP), token_counter=counted, **more)  # fmt: skip

    clears = ContextEditingMiddleware(
        edits=[ClearToolUsesEdit(trigger=THRESHOLD, keep=KEEP)], token_count_method="model"
    )
    return {
        "LangChain SummarizationMiddleware": [summarising()],
        "LangChain SummarizationMiddleware, whole input": [summarising(trim_tokens_to_summarize=None)],
        "LangChain ContextEditingMiddleware": [clears],
    }


def main() -> None:
    """Run each middleware, and write the rows."""
    rows: list[dict[str, object]] = []
    for what in middlewares(Meter()):
        meter = Meter()
        agent = create_agent(Reader(meter=meter), [read], system_prompt="Call read for the next page.",
                             middleware=middlewares(meter)[what])  # fmt: skip
        answer: str | None = None
        try:
            ended = agent.invoke({"messages": [{"role": "user", "content": QUESTION}]}, {"recursion_limit": 10 * PAGES})
            answer = ended["messages"][-1].text
        except RuntimeError as error:
            print(what, error)
        rows.append(meter.row(what, answer))
        print(json.dumps(rows[-1]), flush=True)
    (Path(__file__).parent / "data" / "peers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

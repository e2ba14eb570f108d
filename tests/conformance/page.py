"""The page of the clients, made of the rows that were kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .rows import MEANT, Row

ROWS = Path(__file__).with_name("rows.json")
PAGE = Path(__file__).parent.parent.parent / "docs" / "clients.md"
TITLES = {
    "agui_node": "AG-UI (Node)",
    "dspy_modules": "DSPy",
    "guidellm_bench": "guidellm",
    "inspect_tasks": "Inspect",
    "instructor_modes": "instructor",
    "its_hub_client": "its_hub",
    "langchain_langgraph": "LangChain, LangGraph",
    "litellm_calls": "LiteLLM",
    "llama_index_llm": "LlamaIndex",
    "llm_command": "`llm`",
    "lm_eval_harness": "lm-evaluation-harness",
    "mcp_inspector": "MCP inspector",
    "mcp_python": "MCP (Python)",
    "openai_agents_sdk": "OpenAI Agents SDK",
    "openai_node": "openai (Node), Vercel AI SDK",
    "openai_python": "openai (Python)",
    "pydantic_ai_agents": "pydantic-ai",
    "smolagents_agents": "smolagents",
}
HEAD = """# Clients

What other people's clients get from an upstream, and from `plait serve` before the same upstream, with nothing but the
address changed. The upstream is one without a model that behaves as `vllm serve` does; it has chat and text
completions, not the Responses API. `make conformance` runs the checks of `tests/conformance` in environments of its
own.

| client | version | checks | pass direct | pass through plait | pass direct alone |
|---|---|---|---|---|---|
"""
ALSO = """
{count} checks pass through plait and not direct. They are of what the upstream does not have: the Responses API, custom
and allowed tools, stored completions, AG-UI, and MCP, for which [`plait mcp`](howto/mcp-server.md) is asked.
"""
NOTE = """

<!-- Written by `python -m tests.conformance --write` from tests/conformance/rows.json. -->
"""


def kept(rows: Sequence[Row]) -> None:
    """Write rows down, in the place of those of the same clients, and the page of all."""
    new = {row.client for row in rows}
    rows = sorted([row for row in read() if row.client not in new] + list(rows), key=lambda row: row.client)
    ROWS.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    PAGE.write_text(page(rows))


def read() -> list[Row]:
    """Return the rows that were kept."""
    return [Row(**each) for each in json.loads(ROWS.read_text())] if ROWS.exists() else []


def page(rows: Sequence[Row]) -> str:
    """Return the text of the page."""
    lines: list[str] = []
    for client in dict.fromkeys(row.client for row in rows):
        mine = [row for row in rows if row.client == client]
        passed = sum(not row.direct for row in mine), sum(not row.through for row in mine)
        counts = (*passed, sum(row.broken for row in mine))
        lines.append(
            f"| {TITLES.get(client, client)} | {mine[0].version} | {len(mine)} | {' | '.join(map(str, counts))} |\n"
        )
    broken = [row for row in rows if row.broken]
    said = [f"- {TITLES.get(row.client, row.client)}, {row.check.replace('_', ' ')}: {why(row)}\n" for row in broken]
    more = [row for row in rows if row.direct and not row.through]
    also = ALSO.format(count=len(more)) if more else ""
    return HEAD + "".join(lines) + also + ("\nWhat differs, and why:\n\n" + "".join(said) if said else "") + NOTE


def why(row: Row) -> str:
    """Return the reason of a difference."""
    return MEANT.get((row.client, row.check), "a fault")

"""The page of the clients, made of the rows that were kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .rows import MEANT, Row

ROWS = Path(__file__).with_name("rows.json")
REAL = Path(__file__).with_name("rows_real.json")
"""The rows before `vllm serve` with a real model."""
PAGE = Path(__file__).parent.parent.parent / "docs" / "clients.md"
TITLES = {
    "adk_agents": "Google ADK",
    "agent_framework_agents": "Microsoft Agent Framework",
    "agno_agents": "Agno",
    "agui_node": "AG-UI (Node)",
    "autogen_agents": "AutoGen",
    "coding_agents": "[Coding agents](howto/coding-agents.md)",
    "crewai_crews": "CrewAI",
    "deepeval_metrics": "DeepEval",
    "dspy_modules": "DSPy",
    "guidance_programs": "guidance",
    "guidellm_bench": "guidellm",
    "haystack_generators": "Haystack",
    "inspect_tasks": "Inspect",
    "instructor_modes": "instructor",
    "its_hub_client": "its_hub",
    "langchain_langgraph": "LangChain, LangGraph",
    "litellm_calls": "LiteLLM",
    "llama_index_llm": "LlamaIndex",
    "llm_command": "`llm`",
    "lm_eval_harness": "lm-evaluation-harness",
    "mastra_node": "Mastra (Node)",
    "mcp_inspector": "MCP inspector",
    "mcp_python": "MCP (Python)",
    "openai_agents_sdk": "OpenAI Agents SDK",
    "openai_node": "openai (Node), Vercel AI SDK",
    "openai_python": "openai (Python)",
    "outlines_forms": "Outlines",
    "pydantic_ai_agents": "pydantic-ai",
    "semantic_kernel_chat": "Semantic Kernel",
    "smolagents_agents": "smolagents",
    "strands_agents": "Strands Agents",
}
HEAD = """# Clients

How other people's clients work with an upstream, and with `plait serve` in front of the same upstream, when only the
address changes. `make conformance` runs the checks of `tests/conformance` in separate environments.

## Before an upstream without a model

This upstream behaves like `vllm serve` and returns scripted text, so a check compares exact words. It has chat and text
completions, but no Responses API.
"""
HEAD_REAL = """
## Before `vllm serve` with a real model

The model is SmolLM2-135M-Instruct, on vLLM 0.32.0, with greedy decoding and at most 32 tokens. A check compares the
structure, the fields, the finish reason and the text, direct and through plait. The model often omits optional calls: a
check that needs one then passes at neither address. Clients that are missing here met the first upstream alone.
`make conformance ARGS="--real FOLDER"` runs the others.
"""
TABLE = """
| client | version | checks | pass direct | pass through plait | pass only direct |
|---|---|---|---|---|---|
"""
ALSO = """
{count} checks pass only through plait. They test what the upstream lacks: the Responses API, custom
and allowed tools, stored completions, AG-UI, and MCP, by [`plait mcp`](howto/mcp-server.md).
"""
NOTE = """

<!-- Written by `python -m tests.conformance --write` from tests/conformance/rows.json. -->
"""


def kept(rows: Sequence[Row], real: bool = False) -> None:
    """Write rows down, in the place of those of the same clients, and the page of all."""
    new, file = {row.client for row in rows}, REAL if real else ROWS
    rows = sorted([row for row in read(file) if row.client not in new] + list(rows), key=lambda row: row.client)
    file.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    PAGE.write_text(page(read(), read(REAL)))


def read(file: Path = ROWS) -> list[Row]:
    """Return the rows that were kept."""
    return [Row(**row) for row in json.loads(file.read_text())] if file.exists() else []


def page(rows: Sequence[Row], real: Sequence[Row]) -> str:
    """Return the text of the page."""
    more = sum(bool(row.direct and not row.through) for row in rows)
    text = HEAD + table(rows) + (ALSO.format(count=more) if more else "") + told(rows)
    return text + (HEAD_REAL + table(real) + told(real) if real else "") + NOTE


def table(rows: Sequence[Row]) -> str:
    """Return a line for each client."""
    lines: list[str] = []
    for client in dict.fromkeys(row.client for row in rows):
        mine = [row for row in rows if row.client == client]
        passed = sum(not row.direct for row in mine), sum(not row.through for row in mine)
        counts = (*passed, sum(row.broken for row in mine))
        lines.append(
            f"| {TITLES.get(client, client)} | {mine[0].version} | {len(mine)} | {' | '.join(map(str, counts))} |\n"
        )
    return TABLE + "".join(lines)


def told(rows: Sequence[Row]) -> str:
    """Return what differs, and why."""
    broken = [row for row in rows if row.broken]
    lines = [f"- {TITLES.get(row.client, row.client)}, {row.check.replace('_', ' ')}: {why(row)}\n" for row in broken]
    return ("\nDifferences and their reasons:\n\n" + "".join(lines)) if lines else ""


def why(row: Row) -> str:
    """Return the reason of a difference."""
    return MEANT.get((row.client, row.check), "a fault")

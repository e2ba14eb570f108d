"""`plait plan`: what a planner plans first, without running it. Decides how a plan is shown; plans nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Common, Count, Json, Merge, Planner, Task, common_options
from .run import planned
from .shell import opened

if TYPE_CHECKING:
    from ..core.ir import Plan, Request
    from ..runtime.client import AsyncOrchestrator
    from ..runtime.config import Config

__all__ = ["asked", "first_plan", "plan"]


@common_options
def plan(
    text: Annotated[str, typer.Argument(help="What is asked.")] = "",
    task: Task = "plain",
    planner: Planner = None,
    file: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Check and show this plan.")] = None,
    merge: Merge = None,
    n: Count = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print it in Graphviz's language.")] = False,
    as_json: Json = False,
    *,
    common: Common,
) -> None:
    """Show the first plan for a request: its steps by wave, its width, its critical path."""
    from ..core import graph
    from ..core.errors import UsageError

    if mermaid + dot + as_json > 1:
        raise UsageError("--mermaid, --dot and --json exclude each other: choose one")
    made = first_plan(common.load(), text, task, planned(planner, file), merge, n)
    chain, wide, layers = graph.critical_path(made), graph.width(made), graph.waves(made)
    with opened(as_json) as output:
        if as_json:
            output.result(
                {
                    "plan": made.model_dump(mode="json", exclude_defaults=True),
                    "steps": len(made.steps),
                    "waves": layers,
                    "width": wide,
                    "critical_path": {"steps": list(chain.names), "tokens_at_most": chain.length},
                }
            )
            return
        if mermaid or dot:
            output.stream.write(graph.mermaid(made) if mermaid else graph.dot(made))
            return
        output.stream.write(graph.text(made))
        output.stream.write(
            f"{len(layers)} waves, width {wide}, critical path {' > '.join(chain.names)} "
            f"(at most {chain.length:g} tokens)\n"
        )


def first_plan(
    config: Config, text: str, task: str, planner: Any, merge: str | None = None, n: int | None = None
) -> Plan:
    """Return the first plan for a request, checked. Raises what submitting it would raise."""
    from ..core.base import Brief
    from ..core.graph import validate
    from ..runtime.expander import Expander

    client, request = asked(config, text, task, planner, merge, n)
    brief = Brief(request=request, task=client.plugins.task(request.task, text), tools=tuple(client._tools.specs))
    made = Expander().start("plan", client.plugins.planner(request.planner), brief, 0.0).plan
    validate(made, tools=[spec.name for spec in brief.tools])
    return made


def asked(
    config: Config,
    text: str,
    task: str,
    planner: Any,
    merge: str | None = None,
    n: int | None = None,
    tokens: int | None = None,
) -> tuple[AsyncOrchestrator, Request]:
    """Return a client without model workers, not started, and the request that it would submit."""
    from ..runtime.client import AsyncOrchestrator

    client = AsyncOrchestrator(config=config, workers=[])
    return client, client._request(text, task, planner, None, merge, None, tokens, None, n, None)

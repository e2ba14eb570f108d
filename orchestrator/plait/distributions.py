"""Names of what the side distributions hold, for messages alone: plugins and commands are found by entry points.

A test holds this table equal to the entry points in `packages/*/pyproject.toml`, so that a plugin or command that moves
into a distribution is found here too. It imports nothing, because `plait --help` imports it.
"""

from __future__ import annotations

CONTENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "plait-bench": {
        "command": ("demo",),
        "environment": ("bash-sql", "bfcl", "data-lake", "humaneval", "programs", "reasoning-gym", "repository"),
        "task": ("bash-sql", "bfcl", "brackets", "countdown", "humaneval", "programs", "reasoning-gym", "sums",
                 "tables"),
    },
    "plait-research": {
        "planner": (
            "blackboard", "code-search", "debate", "deepprune", "evolve", "exchange", "layers", "mars",
            "partial-rollout", "recursive", "route", "route-features", "route-record", "scale",
            "skeleton-graph", "speculate", "ssr", "takeover", "think-summarize",
        ),
        "policy": ("deepconf", "deepconf-consensus"),
        "merge": ("alike", "distinct", "runtime", "shortest-majority"),
        "search": ("dvts", "ets", "lats", "particle", "rebase", "stride"),
        "scorer": ("perplexity", "reward-model"),
        "command": (
            "learn effort", "learn numbers", "learn prompts", "learn rollouts", "learn route",
            "learn versions", "runs export", "simulate", "simulate calibrate", "simulate tune",
        ),
    },
    "plait-router": {},
    "plait-server": {"command": ("mcp", "serve")},
}  # fmt: skip
"""By distribution and kind: names of plugins, and words of commands."""


EXTRAS = {"plait-bench": "bench", "plait-research": "research", "plait-router": "router", "plait-server": "serve"}
"""The extra of plait that installs a side distribution."""


def explain_missing(kind: str, name: str) -> str | None:
    """Return which side distribution holds a plugin or command and how to install it, or `None` if none does."""
    for distribution, kinds in CONTENTS.items():
        if name in kinds.get(kind, ()):
            return (
                f"The {kind} `{name}` is in {distribution}, which is not installed. "
                f"Install it: pip install 'plait[{EXTRAS[distribution]}]'."
            )
    return None

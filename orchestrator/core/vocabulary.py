"""The shared words of plugins' options: one name has one type, one meaning and one docstring in all of plait.

    class Sample(Planner):
        n: N = 8
        merge: MergeOption = Plugin(name="majority")

What is said of a model call is no word of these: it is a field of a `Prompt`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from .ops import Plugin

__all__ = [
    "Allocate",
    "Arithmetic",
    "Deadline",
    "Depth",
    "Early",
    "Least",
    "MergeOption",
    "Most",
    "N",
    "OnePlugin",
    "Reads",
    "Records",
    "Rounds",
    "Scorer",
    "Separator",
    "Settle",
    "Style",
    "Threshold",
    "Tolerate",
    "Warmup",
    "Width",
    "Window",
]


def _as_plugin(value: object) -> object:
    return Plugin.of(value) if isinstance(value, str | BaseModel) else value


OnePlugin = Annotated[Plugin, BeforeValidator(_as_plugin)]
"""An option that names a plugin: `alike:ask=model`, `{"name": …, "options": {…}}`, or an instance of its class."""

N = Annotated[int, Field(ge=1, description="Branches at once: samples, paths, threads, agents. `n=` of a run sets it.")]
Most = Annotated[int, Field(ge=1, description="Most branches in all.")]
Least = Annotated[int, Field(ge=1, description="Fewest branches that are worth it: with fewer it is one call.")]
Rounds = Annotated[int, Field(ge=1, description="Most rounds, of which each reads what the one before it came to.")]
Depth = Annotated[int, Field(ge=1, description="Most levels of branches below one another.")]
Width = Annotated[int, Field(ge=1, description="Branches that the task's prompt tells one line of reasoning of.")]
MergeOption = Annotated[
    OnePlugin, Field(description='The merge of the branches, by name or as `{"name": …, "options": {…}}`.')
]
Allocate = Annotated[
    OnePlugin, Field(description='The allocation, by name or as `{"name": …, "options": {…}}`: how many branches more.')
]
Scorer = Annotated[
    OnePlugin, Field(description='What scores steps in [0, 1], by name or as `{"name": …, "options": {…}}`.')
]
Early = Annotated[
    bool, Field(description="Go on as soon as what is outstanding cannot change the outcome, and stop the rest.")
]
Settle = Annotated[
    bool,
    Field(
        description="What the task's verifier finds right ends the run. No difference where the task has no verifier."
    ),
]
Deadline = Annotated[
    float | None, Field(gt=0.0, description="Seconds after which a round goes on with the branches that are done.")
]
Reads = Annotated[
    int,
    Field(
        ge=1,
        description="Most tokens of the branches' texts that one call reads, shared evenly; longer texts are cut.",
    ),
]
Threshold = Annotated[float, Field(description="The score from which on something counts.")]
Records = Annotated[
    tuple[tuple[float, ...], ...], Field(description="What is recorded of earlier runs, by which thresholds are set.")
]
Window = Annotated[int, Field(ge=1, description="Steps that the draft may be ahead of the last one that stands.")]
Warmup = Annotated[int, Field(ge=2, description="Branches that run to their ends, by which thresholds are set.")]
Separator = Annotated[str, Field(description="Between the branches' texts in the answer.")]
Tolerate = Annotated[
    Literal["all", "best-effort"],
    Field(
        description="`best-effort`: a branch that fails is left out. `all`: with the first that fails it is one call."
    ),
]
Style = Annotated[
    Literal["serial", "direct", "threads"],
    Field(
        description="Mode of answering that the task's prompt asks for: `serial` (reasoning first), `direct` (the "
        "answer at once) or `threads`."
    ),
]
Arithmetic = Annotated[
    bool,
    Field(
        description="Arithmetic sampling (Vilnis et al., arXiv 2210.15458): in place of random numbers each sample "
        "follows a code, and the codes of all are spread evenly, so that the samples repeat one another less and their "
        "votes scatter less. Each by itself is an ordinary sample. Stop rules that count votes assume independent "
        "ones. Needs the worker `engine` or `ray`, on a GPU with their option `arithmetic=true`, or a vLLM server with "
        "`--logits-processors plait.workers.engine.arithmetic:Arithmetic`."
    ),
]

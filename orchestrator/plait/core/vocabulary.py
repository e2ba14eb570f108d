"""The shared words of plugins' options: one name has one type, one meaning and one docstring in all of plait.

    class Sample(Planner):
        n: N = 8
        merge: MergeOption = Plugin(name="majority")

A setting of a model call is not a word here but a field of a `CallConfig`. A planner's docstring for an option begins
with the word's docstring and adds the planner's details. The words use the bound `gt`: pydantic keeps one bound of each
kind, so a planner can add its own `ge`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from .declarations import Access, BranchCount, Free, ModelName, ServerFile, TokenCount
from .ops import Plugin


def _as_plugin(value: object) -> object:
    return Plugin.of(value) if isinstance(value, str | BaseModel) else value


Count = Annotated[int, BranchCount()]
FreeText = Annotated[str, Free()]
OnePlugin = Annotated[Plugin, BeforeValidator(_as_plugin)]
"""An option that names a plugin: `alike:ask=model`, `{"name": …, "options": {…}}`, or an instance of its class."""

N = Annotated[
    Count,
    Field(gt=0, description="Number of parallel branches: samples, paths, threads, agents. `n=` of a run sets it."),
]
MaxBranches = Annotated[Count, Field(gt=0, description="Maximum number of branches in all; further ones are not run.")]
Rounds = Annotated[
    Count, Field(gt=0, description="Maximum number of rounds. Each reads the results of the one before.")
]
Depth = Annotated[
    Count, Field(gt=-1, description="Maximum depth: of a path, or of steps ahead of the last accepted one.")
]
Width = Annotated[Count, Field(gt=0, description="Branches of one trajectory: the number that the model is asked for.")]
MaxPromptItems = Annotated[
    int | None,
    Free(),
    Field(gt=-1, description="Maximum number of items in one prompt, the nearest or best first. By default all."),
]
MaxTools = Annotated[
    int | None,
    Free(),
    Field(gt=-1, description="Maximum number of tools in one prompt, the best matches first. By default all."),
]
Repairs = Annotated[Count, Field(gt=-1, description="Maximum number of model calls that repair an invalid reply.")]
ObservationChars = Annotated[
    int | None,
    TokenCount(),
    Field(gt=0, description="Maximum number of characters of one result in a prompt; longer ones keep head and tail."),
]
Quorum = Annotated[
    Count | None,
    Field(gt=-1, description="Minimum number of finished branches; the rest are then cancelled. By default all."),
]
MergeOption = Annotated[
    OnePlugin,
    Access("merge"),
    Field(description='The merge of the branches, by name or as `{"name": …, "options": {…}}`.'),
]
Allocate = Annotated[
    OnePlugin,
    Access("merge"),
    Field(description='The allocation, by name or as `{"name": …, "options": {…}}`: the number of further branches.'),
]
Scorer = Annotated[
    OnePlugin,
    Access("scorer"),
    Field(description='Scorer of steps, in [0, 1], by name or as `{"name": …, "options": {…}}`.'),
]
SearchOption = Annotated[
    OnePlugin,
    Access("search"),
    Field(description='The search: which node grows next, by name or as `{"name": …, "options": {…}}`.'),
]
Models = Annotated[
    tuple[str, ...],
    ModelName(),
    Field(description="Names of the models of the branches, in turn; by default that of the prompt."),
]
Criterion = Annotated[FreeText, Field(description="Criterion.")]
AnswerFrom = Annotated[FreeText, Field(description="Source of the answer.")]
DialectName = Annotated[FreeText, Field(description="Output format of the model.")]
Path = Annotated[str | None, ServerFile(), Field(description="A file to read.")]
Early = Annotated[
    bool, Field(description="Continue as soon as the open branches cannot change the outcome, and cancel them.")
]
StopOnVerified = Annotated[
    bool,
    Field(description="Stop at the first answer that the task's verifier accepts. No effect without a verifier."),
]
MaxInputTokens = Annotated[
    int | None,
    TokenCount(),
    Field(
        gt=0,
        description="Maximum number of tokens of the branches' texts in one call, shared evenly; longer texts are cut.",
    ),
]
Threshold = Annotated[float, Field(description="Threshold of a score.")]
Records = Annotated[tuple[tuple[float, ...], ...], Field(description="Records of earlier runs, which set thresholds.")]
Warmup = Annotated[
    Count,
    Field(
        gt=0,
        description="Number of branches that run to their ends first; they decide about the others.",
    ),
]
Confidence = Annotated[float, Field(ge=0.0, le=1.0, description="Probability at which something counts as sure.")]
Separator = Annotated[FreeText, Field(description="Between the branches' texts in the answer.")]
OnFailure = Annotated[
    Literal["all", "best-effort"],
    Field(
        description="Handling of failed branches. `best-effort`: they are left out. `all`: the first failure makes it "
        "a single call."
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

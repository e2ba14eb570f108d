"""Planner `think_summarize`: several lines of thought side by side, and one call that writes the answer from them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.errors import PluginError
from plait.core.flow import Answerable, Flow
from plait.core.ops import Plugin, Text
from plait.core.plan import Step
from plait.core.planning import CallOptions
from plait.core.vocabulary import N, Quorum, StopOnVerified
from plait.planners._shared.drafts import (
    Draft,
    find_verified,
    format_histogram,
    read_drafts,
    render_block,
    render_drafts,
)
from plait.planners._shared.steps import Asker

__all__ = ["ThinkSummarize"]

MOST_TAGGED = 8
"""Paths that ParaThinker's tokenizer has tags for."""
MAX_INPUT_TOKENS = 4096
"""Maximum number of tokens of all paths in the prompt of the synthesis."""

_SUMMARY = """\
{question}

Several attempts at this were made independently of one another. Some may be wrong, some were stopped before their end.

{drafts}
{histogram}Compare the attempts, keep what holds, correct what does not, and write one complete and final answer to \
the question. Do not mention the attempts.
"""


class ThinkSummarize(Flow):
    """Parallel thoughts and a synthesis, after ParaThinker (arXiv 2509.04475).

    Steps: `path-1` … `path-n` think about the request independently. When `quorum` of them are done (by default one:
    First-Finish, in the paper the most accurate and the cheapest) the others are stopped; their text so far is kept.
    `summary` reads all texts and writes the answer. If it fails, the finished paths vote. A path that the task's
    verifier finds right is the answer, and so is a path without any other beside it.

    Differs from the paper, whose model is trained to think in tagged paths and whose engine lets the summary attend to
    their caches: here a prompt asks any model for a synthesis of the paths' text (or the model writes in the dialect
    that it was trained in). Do not expect the paper's figures. The paths race: with a quorum below `n` a seed does not
    determine the answer, since the first paths to end are read, and the answer's `why` reports it. Tokens of
    stopped paths count as cancelled in the run's usage. Defaults: 4 paths, temperature 0.8, at most 4,096 tokens of
    paths read.
    """

    fidelity = Fidelity(
        "variant",
        "any model, by words; `dialect=parathinker` has the released tags",
        oracles=("tokens-parathinker",),
        paper="2509.04475",
    )

    answer_calls: ClassVar[tuple[str, ...]] = ("summary",)

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.8, stream=True),
        description="The paths. Their template has `{question}`. With `stream` the text of stopped ones is read too.",
    )
    summary: Annotated[CallConfig, Uses("question", "drafts", "histogram")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The synthesis. Its template has `{question}`, `{drafts}`, and `{histogram}`, a count of their "
        "answers.",
    )
    n: N = 4
    quorum: Quorum = Field(default=1, ge=1)
    dialect: Literal["words", "parathinker"] = Field(
        default="words",
        description="Output format of the model. `parathinker`, for a model that was trained as that "
        "one: path 1 begins with `<think1>` … and ends at `</think1>`, and the answer is the `<summary>` that follows "
        "all paths in the model's own turn. Its engine lets the summary attend to the paths' caches; here it reads "
        "their text again. Its tokenizer has tags for eight paths, so `n` is at most 8.",
    )
    stop_on_verified: StopOnVerified = True

    @model_validator(mode="after")
    def _paths_have_tags(self) -> ThinkSummarize:
        if self._tagged and self.n > MOST_TAGGED:
            raise PluginError(f"a model trained as ParaThinker has tags for {MOST_TAGGED} paths: give a smaller `n`")
        return self

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the synthesis of the paths, or the path that makes it needless."""
        asker = Asker("think_summarize", ctx.brief)
        may_stop = self.quorum is not None or bool(self.stop_on_verified)
        partial = bool(self.draft.stream) and may_stop
        paths = {f"path-{i}": ctx.step(self._path(asker, i, partial)) for i in range(1, self.n + 1)}
        enough = None if self.quorum is None else min(self.quorum, self.n)
        read = await ctx.join(
            paths.values(),
            Plugin(
                name="synthesis-drafts",
                options={"enough": enough, "partial": partial, "stop_on_verified": self.stop_on_verified},
            ),
            on_failure="best-effort",
            early=True,
            name="paths",
            label="first to finish" if enough == 1 else f"{enough or 'all'} of {self.n}",
        )
        drafts = read_drafts(read.result)
        why = read.why if enough is None or enough >= self.n else f"{read.why}; the first to end were read (a race)"
        right = find_verified(drafts) if self.stop_on_verified else None
        if right is not None:
            return ctx.answer(paths[right.name], f"{right.name} is verified; {why}", name="answer")
        if len(drafts) == 1 and drafts[0].done:
            return ctx.answer(paths[drafts[0].name], f"nothing beside it to read; {why}", name="answer")
        summary = ctx.step(self._summary(asker, drafts))
        votes = [paths[draft.name] for draft in drafts if draft.done]  # if the synthesis fails
        merge = Plugin(name="synthesis-or-vote", options={"note": why})
        return ctx.join([summary, *votes], merge, on_failure="best-effort", early=True, name="answer")

    @property
    def _tagged(self) -> bool:
        return self.dialect == "parathinker"

    def _path(self, asker: Asker, number: int, partial: bool) -> Step:
        options: CallOptions = {"stream": partial, "label": f"path {number} of {self.n}"}
        if self._tagged:
            options["begin"], options["stop"] = f"<think{number}>", (f"</think{number}>",)
        return asker.step(
            f"path-{number}",
            self.draft.parts("{question}", question=asker.question),
            self.draft,
            **options,
        )

    def _summary(self, asker: Asker, drafts: list[Draft]) -> Step:
        """Return the synthesis: a call that reads all paths, or (tagged) the end of the turn in which they stand."""
        options: CallOptions = {"label": f"{'summary' if self._tagged else 'synthesis'} of {len(drafts)} paths"}
        if self._tagged:
            pieces = (Text(text=asker.question),)
            by_name = {f"path-{number}": number for number in range(1, self.n + 1)}
            numbers = [by_name[draft.name] for draft in drafts]
            texts = zip(numbers, render_drafts(drafts, MAX_INPUT_TOKENS), strict=True)
            begin = "".join(f"<think{i}>{text}</think{i}>\n" for i, text in texts) + "<summary>"
            options["begin"], options["stop"] = begin, ("</summary>",)
        else:
            counted = format_histogram([draft for draft in drafts if draft.done])
            pieces = self.summary.parts(
                _SUMMARY,
                question=asker.question,
                drafts=render_block(drafts, MAX_INPUT_TOKENS, "Attempt"),
                histogram=f"{counted}\n\n" if counted else "",
            )
        return asker.step(
            "summary",
            pieces,
            self.summary,
            **options,
        )

"""Planner `think_summarize`: several lines of thought side by side, and one call that writes the answer from them."""

from __future__ import annotations

from pydantic import Field

from plait.core.flow import Answerable, Flow
from plait.core.ops import Part, Plugin, Text
from plait.core.plan import Step

from .._shared.drafts import Draft, block, drafts_of, histogram, shown, verified
from .._shared.steps import Asker

__all__ = ["ThinkSummarize"]

_HEAD = """\
{question}

Several attempts at this were made independently of one another. Some may be wrong, some were stopped before their end.

"""
_TAIL = """\

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
    their caches: here any model is asked in words for a synthesis of the paths' text (or, with `tags`, writes as that
    model was trained to). Do not expect the paper's figures. Tokens of stopped paths count as cancelled in the run's
    usage. Defaults: 4 paths, temperature 0.8, at most `read_tokens` of paths read.
    """

    n: int = Field(default=4, ge=1)
    """Lines of thought; the paper has up to 8."""
    quorum: int | None = Field(default=1, ge=1)
    """Finished paths after which the others are stopped; `null` waits for all. If too many fail, the synthesis reads
    the rest."""
    keep_partial: bool = True
    """Read the text of stopped paths too. Needs a worker that streams."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds after which the synthesis reads the paths as they are."""
    path_tokens: int = Field(default=1024, ge=1)
    """Most tokens of a path."""
    summary_tokens: int = Field(default=1024, ge=1)
    """Most tokens of the answer."""
    read_tokens: int = Field(default=4096, ge=1)
    """Most tokens of paths that the synthesis reads, shared evenly; longer paths lose their beginning."""
    temperature: float = Field(default=0.8, ge=0.0)
    """Of the paths; 0 is greedy and makes them all the same."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    summary_temperature: float = Field(default=0.0, ge=0.0)
    """Of the synthesis."""
    tags: bool = False
    """Write for a model that was trained as ParaThinker: path i begins with `<think i>` and ends at `</think i>`, and
    the answer is the `<summary>` that follows all paths in the model's own turn. Its engine lets the summary attend to
    the paths' caches; here it reads their text again."""
    settle: bool = True
    """A path that the task's verifier finds right ends the run. No difference where the task has no verifier."""
    stream: bool = False
    """Send the synthesis's text while it is being written; the paths' always is if partial text is kept."""

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the synthesis of the paths, or the path that makes it needless."""
        asker = Asker("think_summarize", ctx.brief)
        partial = self.keep_partial and (self.quorum is not None or self.deadline is not None or self.settle)
        paths = {f"path-{i}": ctx.step(self._path(asker, i, partial)) for i in range(1, self.n + 1)}
        enough = None if self.quorum is None else min(self.quorum, self.n)
        read = await ctx.join(
            paths.values(),
            Plugin(name="synthesis-drafts", options={"enough": enough, "partial": partial, "settle": self.settle}),
            tolerate="best-effort",
            early=True,
            deadline=self.deadline,
            name="paths",
            label="first to finish" if enough == 1 else f"{enough or 'all'} of {self.n}",
        )
        drafts = drafts_of(read.result)
        right = verified(drafts) if self.settle else None
        if right is not None:
            return ctx.answer(paths[right.name], f"{right.name} is verified; {read.why}", name="answer")
        if len(drafts) == 1 and drafts[0].done:
            return ctx.answer(paths[drafts[0].name], f"nothing beside it to read; {read.why}", name="answer")
        summary = ctx.step(self._summary(asker, drafts))
        votes = [paths[draft.name] for draft in drafts if draft.done]  # if the synthesis fails
        merge = Plugin(name="synthesis-or-vote", options={"note": read.why})
        return ctx.join([summary, *votes], merge, tolerate="best-effort", early=True, name="answer")

    def _path(self, asker: Asker, number: int, partial: bool) -> Step:
        return asker.step(
            f"path-{number}",
            asker.question,
            max_tokens=self.path_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            begin=f"<think {number}>" if self.tags else "",
            stop=(f"</think {number}>",) if self.tags else (),
            stream=partial,
            label=f"path {number} of {self.n}",
        )

    def _summary(self, asker: Asker, drafts: list[Draft]) -> Step:
        """Return the synthesis: a call that reads all paths, or (`tags`) the end of the turn in which they stand."""
        prompt: str | tuple[Part, ...] = asker.question
        begin = ""
        if self.tags:
            numbers = [draft.name.rpartition("-")[2] for draft in drafts]
            texts = zip(numbers, shown(drafts, self.read_tokens), strict=True)
            begin = "".join(f"<think {i}>{text}</think {i}>\n" for i, text in texts) + "<summary>"
        else:
            counted = histogram([draft for draft in drafts if draft.done])
            prompt = (
                Text(text=_HEAD.format(question=asker.question)),
                Text(text=block(drafts, self.read_tokens, "Attempt")),
                Text(text=_TAIL.format(histogram=f"{counted}\n\n" if counted else "")),
            )
        return asker.step(
            "summary",
            prompt,
            max_tokens=self.summary_tokens,
            temperature=self.summary_temperature,
            begin=begin,
            stop=("</summary>",) if self.tags else (),
            stream=self.stream,
            label=f"{'summary' if self.tags else 'synthesis'} of {len(drafts)} paths",
        )

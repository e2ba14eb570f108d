"""Planner `decompose`: split a prompt with several pieces of one kind, and answer all pieces in parallel.

The rules for a sound split are in `rules.py`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Flow, StepFailed
from plait.core.ops import Join, Part, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.sampling import StructuredOutput
from plait.core.vocabulary import MaxBranches, OnFailure, Separator, Threshold

from ..._shared.json_text import read_object
from ..._shared.steps import Asker, shorten
from .rules import Split, Tier, choose_tier, find_faults, find_signals, read_split

__all__ = ["Decompose"]

_EXTRACT = """\
{question}

---
Do not answer the request above yet. Some requests ask for the same thing several times: once for each of several \
given texts, or a number of times over. They can be split into independent requests. Decide whether this one can, and \
how.

Reply with one JSON object and nothing else. If it can be split:
- "template": the instruction for a single piece, as a complete request. Put {data} where the piece goes. If all \
pieces need the same text, begin with {context}. For something written several times over there is no {data}: word \
the instruction for one.
- "context": that text, copied from the request, or null.
- "data": the pieces as a list of strings, copied from the request; or null if the same is written several times over.
- "n": how many times, or null if there is "data".
- "category": "Repeated Generation", "Reading Comprehension", "Keyword Extraction", "Named Entity Recognition", \
"Translation", "Language Correction", "Sentiment Analysis", or a name of your own.
If pieces depend on one another, or there is only one, it cannot be split: reply {"template": null}.

Examples:
"Translate to German: 1. Good day. 2. Good night." gives
{"template": "Translate to German: {data}", "context": null, "data": ["Good day.", "Good night."], "n": null, \
"category": "Translation"}
"Write 3 riddles about rain" gives
{"template": "Write a riddle about rain", "context": null, "data": null, "n": 3, "category": "Repeated Generation"}
"""
_FORM = StructuredOutput(
    kind="json",
    required=False,
    spec={
        "type": "object",
        "properties": {
            "template": {"type": ["string", "null"]},
            "context": {"type": ["string", "null"]},
            "data": {"type": ["array", "null"], "items": {"type": "string"}},
            "n": {"type": ["integer", "null"]},
            "category": {"type": "string"},
        },
        "required": ["template"],
        "additionalProperties": False,
    },
)
_VARY = """

This is one of {n} independent answers to the same request, number {i}. Choose something that the others are unlikely \
to choose, and write only one.
"""
_SCORES: dict[Tier, float] = {"low": 0.0, "medium": 0.5, "high": 1.0}


class Decompose(Flow):
    """Intra-query parallelism with the schema and rules of PARALLELPROMPT (Kolawole et al., arXiv 2506.18728).

    Steps: a prompt without any sign of several pieces is one call, without an extraction. Otherwise `extract` writes
    `{template, context, data | n, category}`, and rules check it. The steps `item-1` … `item-n` answer the pieces in
    parallel, and `text` joins the answers in the order of the pieces. If a split fails, is not sound, or is less sure
    than `threshold`, one call, `direct`, answers; `why` reports it.

    Differs from the original, a benchmark whose splits a large model extracted beforehand. Here the run extracts the
    split, after a check for signs of several pieces that costs no tokens. Pieces and context must occur in the prompt,
    and so must a number. Repeated generation is varied by a seed and a line in each prompt, not by a seed alone (n
    equal answers are the known weakness). Pieces that depend on one another are not split. Defaults: temperature 0.7
    and 1,000 tokens for a piece, as in the original.
    """

    fidelity = Fidelity("variant", "pieces found by rules first, then by one call", paper="2506.18728")

    answer_calls: ClassVar[tuple[str, ...]] = ("part", "answer")

    plan: Annotated[CallConfig, Uses("question", "context", "data")] = Field(
        default=CallConfig(thinking="off", max_tokens=1024, temperature=0.0, form="json"),
        description="The question how the request is split. Its template has `{question}`; `{context}` and `{data}` "
        "stay as they are. `form=json`: an engine that can allows nothing but the JSON that is read; `form=null`: "
        "anything.",
    )
    part: Annotated[CallConfig, Uses("piece")] = Field(
        default=CallConfig(max_tokens=1000, temperature=0.7),
        description="The answer to a piece. Its template has `{piece}`, the request for this piece.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=4000, temperature=0.7),
        description="The one call for a prompt that is not split. Its template has `{question}`.",
    )
    threshold: Threshold = Field(
        default=0.5,
        ge=0.0,
        le=1.0,
        description="Threshold of a score: how sure a split must be. A count, a list, two "
        'questions or a word for several in the prompt score 1; commas, "for each", a plural before a colon, '
        "translation and its like, or three pieces 0.5; any other sound split 0.",
    )
    max_branches: MaxBranches = Field(default=64, ge=2)
    on_failure: OnFailure = "best-effort"
    numbered: bool = Field(default=True, description="Write the piece's number before its answer.")
    separator: Separator = "\n\n"

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the joined answers of the pieces, or the single call."""
        asker = Asker("decompose", ctx.brief)
        if not find_signals(ctx.brief.request.text):
            return self._direct(ctx, asker, "one call: no sign of several pieces")
        try:
            split = self.split(asker, (await ctx.step(self.extraction(asker))).result)
            if isinstance(split, str):
                return self._direct(ctx, asker, f"one call: {split}")
            async with ctx.scope() as inner:
                pieces = inner.plan(split)
                await pieces
                return pieces
        except StepFailed as error:
            return self._direct(ctx, asker, f"one call instead ({error})")

    def extraction(self, asker: Asker, expands: bool = False) -> Step:
        """Return the call that extracts the split; with `expands` a reader reads it."""
        form = _FORM if self.plan.form == "json" else self.plan.form
        pieces = self.plan.parts(_EXTRACT, question=asker.question)
        return asker.step(
            "extract", pieces, self.plan, form=form, expands=expands, label="several pieces?", role="extract"
        )

    def split(self, asker: Asker, result: Result) -> Plan | str:
        """Return the steps of the extracted pieces and their join, or the reason for no split."""
        if result.finish == "length":  # A truncated list of pieces would look complete.
            return "the extraction was cut off"
        split = read_split(read_object(result.text))
        if isinstance(split, str):
            return split
        wrong = find_faults(split, asker.question, self.max_branches)
        if wrong:
            return f"the split is not sound ({'; '.join(wrong)})"
        sure = choose_tier(split, find_signals(asker.brief.request.text))
        if _SCORES[sure] < self.threshold:
            return f"{sure} confidence in the split, a score of {_SCORES[sure]:g}, where {self.threshold:g} is wanted"
        return self._pieces(asker, split, sure)

    def _pieces(self, asker: Asker, split: Split, sure: Tier) -> Plan:
        steps: list[Step] = []
        entries: list[JsonValue] = []
        for i in range(1, split.size + 1):
            data = split.data[i - 1] if split.data is not None else None
            shared, own = split.piece(data)
            if data is None:
                own += _VARY.format(n=split.size, i=i)
            pieces: tuple[Part, ...] = tuple(Text(text=part) for part in (shared, own) if part)
            if self.part.template is not None:  # otherwise two texts, so that an engine prefills the shared part once
                pieces = self.part.parts("", piece=pieces)
            label = shorten(data) if data is not None else f"{i} of {split.size}"
            steps.append(step := asker.step(f"item-{i}", pieces, self.part, label=label, role="item"))
            head = f"{i}. " if self.numbered else ""
            missing = f"{head}(no answer: {{reason}})"
            entries.append({"branch": step.name, "head": head, "missing": missing})
        note = f"{split.size} pieces, {sure} confidence"
        note += f", {shorten(split.category, 40)}" if split.category.strip() else ""
        merge = Plugin(name="stitch", options={"parts": entries, "separator": self.separator, "note": note})
        op = Join(merge=merge, on_failure=self.on_failure)
        join = Step(name="text", op=op, needs=tuple(step.name for step in steps), label=note)
        return Plan(steps=(*steps, join), output="text")

    def _direct(self, ctx: Flow.Context, asker: Asker, note: str) -> Answerable:
        return ctx.plan(asker.direct(self.answer, note))

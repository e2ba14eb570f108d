"""Planner `decompose`: split a prompt with several pieces of one kind, and answer all pieces in parallel.

The rules for a sound split are in `rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Flow, StepFailed
from plait.core.ops import Join, Part, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.sampling import StructuredOutput
from plait.core.values import Frozen
from plait.core.vocabulary import MaxBranches, OnFailure, Separator, Threshold

from ..._shared.json_text import read_object
from ..._shared.steps import Asker, shorten

__all__ = ["Decompose"]


# Rules of PARALLELPROMPT (arXiv 2506.18728). They decide whether a prompt can be split, whether a model's split is
# sound, and how sure this is. The authors kept 37,000 of 60,000 candidates with these rules. Pure functions.


MAX_CHARS = 40_000
"""Maximum number of a prompt's characters that the rules read."""
Tier = Literal["high", "medium", "low"]

_WORDS = (
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
NUMBERS = {word: value for value, word in enumerate(_WORDS, 2)} | {
    "dozen": 12,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "hundred": 100,
}
_COUNT = rf"(?:[2-9]|[1-9]\d{{1,2}}|{'|'.join(NUMBERS)})"
_ITEM = re.compile(r"^[ \t]*(?:\d{1,3}[.)]|[a-zA-Z][.)]|[-*•–])[ \t]+\S", re.MULTILINE)
_BY_PIECE = re.compile(
    r"\b(?:translat|extract|summari[sz]|classif|correct|proofread|rewrit|paraphras|label|annotat|identif|answer|rate\b"
    r"|analy[sz]|compar|entit|keyword|sentiment)",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"\n[ \t]{0,40}[^\s]|[.!?]\s[^.!?]{1,2000}[.!?]")
_PATTERNS: dict[str, re.Pattern[str]] = {
    # An explicit number with its noun: "5 short poems", "ten different titles".
    "count": re.compile(
        rf"\b{_COUNT}\s+(?!times\b)(?:[a-z][a-z'-]*\s+){{0,3}}(?!times\b|is\b|was\b)[a-z]{{2,}}s\b", re.IGNORECASE
    ),
    "questions": re.compile(r"\?[^?]*\?"),
    # Words that mean "several".
    "multiple": re.compile(
        r"\b(?:each|every|all|both|several|multiple|various|different|following|list|lists|many|variations?|versions?"
        r"|examples|ideas|alternatives|respectively|separately|individually)\b",
        re.IGNORECASE,
    ),
    "each": re.compile(r"\bfor\s+(?:each|every|all)\b", re.IGNORECASE),
    "commas": re.compile(
        r"(?:[^,;\n.?!]{1,80}[,;]){2}[^,;\n.?!]{1,80}(?:[,;]|\b(?:and|or)\b|$)", re.IGNORECASE | re.MULTILINE
    ),
    "plural": re.compile(
        r"\b(?!this\b|his\b|is\b|was\b|has\b|does\b|as\b|us\b|its\b|thus\b|yes\b)[a-z]+[a-rt-z]s\b[^\n:.]{0,40}:",
        re.IGNORECASE,
    ),
}
_STRONG = ("count", "items", "questions")
_BY_PIECES = ("reading comprehension", "named entity recognition", "ner", "translation")
_FIELD = re.compile(r"\{(data|context|n)\}")
_WORD = re.compile(r"\w+")


class Split(Frozen):
    """The split of a prompt: the schema of PARALLELPROMPT without `serial`, which is the prompt itself."""

    template: str
    """The instruction for one piece, with `{data}` where the piece goes and `{context}` where the context goes."""
    context: str | None = None
    """Text that every piece needs."""
    data: tuple[str, ...] | None = None
    """The pieces; `None` if `n` is set."""
    n: int | None = None
    """Number of texts to write from the same instruction."""
    category: str = ""
    """Repeated Generation, Reading Comprehension, Keyword Extraction, Named Entity Recognition, Translation, Language
    Correction, Sentiment Analysis, or another."""

    @property
    def size(self) -> int:
        """Number of pieces."""
        return len(self.data) if self.data is not None else self.n or 0

    def piece(self, data: str | None) -> tuple[str, str]:
        """Return the prompt of one piece in two parts: the common start of all pieces' prompts, and the rest.

        Fields are filled in once: `{data}` inside a context or a piece stays unchanged.
        """
        fields = {"context": self.context or "", "data": data or "", "n": "1"}
        at = self.template.find("{data}")
        shared, own = (self.template[:at], self.template[at:]) if at >= 0 else (self.template, "")
        shared, own = (_FIELD.sub(lambda field: fields[field[1]], part) for part in (shared, own))
        if self.context is not None and "{context}" not in self.template:
            shared = f"{self.context}\n\n{shared}"
        return shared, own


def find_signals(prompt: str) -> frozenset[str]:
    """Return the names of the signs of several pieces in a prompt. A prompt without signs cannot be split and needs no
    extraction call."""
    text = prompt[:MAX_CHARS]
    cues = {name for name, pattern in _PATTERNS.items() if pattern.search(text)}
    if sum(1 for _ in islice(_ITEM.finditer(text), 2)) == 2:
        cues.add("items")
    verb = _BY_PIECE.search(text)
    if verb is not None and _SEVERAL.search(text, verb.end()):
        cues.add("pieces")  # a task that works piece by piece, on a text of several lines or sentences
    return frozenset(cues)


def find_faults(split: Split, prompt: str, most: int) -> list[str]:
    """Return the faults of a split, with explanations; empty if it can run.

    The published rules require data or n but not both, at least two pieces, and the placeholders. In addition, pieces
    and context must occur in this prompt, with at most `max_branches` pieces.
    """
    fields = set(_FIELD.findall(split.template))
    wrong: list[str] = []
    if not split.template.strip():
        wrong.append("the template is empty")
    if (split.data is None) == (split.n is None):
        wrong.append("it needs either data or n" if split.n is None else "it has both data and n")
    if split.data is not None:
        wrong += _find_data_faults(split.data, fields)
    if split.n is not None:
        wrong += _find_number_faults(split.n, fields, prompt)
    if "context" in fields and not (split.context or "").strip():
        wrong.append("the template has {context}, but there is none")
    if split.size > most:
        wrong.append(f"{split.size} pieces are more than {most}")
    known = set(_WORD.findall(prompt.casefold()))
    for what, text in (("the context", split.context or ""), *(("a piece", piece) for piece in split.data or ())):
        words = set(_WORD.findall(text.casefold()))
        if words and len(words & known) < 0.6 * len(words):
            return [*wrong, f"{what} is not from the prompt"]
    return wrong


def _find_data_faults(data: Sequence[str], fields: Set[str]) -> Iterator[str]:
    if len(data) < 2:
        yield f"data has {len(data)} pieces, not two or more"
    if "data" not in fields:
        yield "the template has no {data}"
    if any(not piece.strip() for piece in data):
        yield "a piece is empty"
    elif len(set(data)) < len(data):
        yield "a piece is there twice"


def _find_number_faults(n: int, fields: Set[str], prompt: str) -> Iterator[str]:
    if n < 2:
        yield f"n is {n}, not two or more"
    if "data" in fields or "n" in fields:
        yield "the template of something that is written n times has {data} or {n} in it"
    elif n not in _numbers(prompt):
        yield f"the prompt does not say {n}"


def choose_tier(split: Split, hints: Set[str]) -> Tier:
    """Return the confidence that a sound split is right, by the published rules.

    High: an explicit count, list markers, two questions, or a word for several together with data or n. Medium: a list
    with commas, "for each", a plural before a colon, a category with separate pieces, or three pieces.
    """
    if any(name in hints for name in _STRONG) or "multiple" in hints:
        return "high"
    category = split.category.strip().lower()
    if {"commas", "each", "plural"} & hints or category in _BY_PIECES or len(split.data or ()) >= 3:
        return "medium"
    return "low"


def read_split(value: JsonValue) -> Split | str:
    """Return the split in a model's JSON, or the reason why it is invalid. Numbers as pieces become text; `null` and
    empty fields are dropped; a list with one object counts as the object."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return "no JSON object was found"
    fields = {key.strip().lower(): item for key, item in value.items()}
    template, category = fields.get("template"), fields.get("category")
    if not isinstance(template, str) or fields.get("parallel") is False:
        return "the model says that it cannot be split" if "template" in fields or len(fields) < 2 else "no template"
    context, data, n = fields.get("context"), fields.get("data"), fields.get("n")
    pieces = _read_pieces(data)
    if pieces is None:
        return "a piece of data is no text"
    return Split(
        template=template,
        context=context if isinstance(context, str) and context.strip() else None,
        data=pieces or None,
        n=_read_number(n, len(pieces)),
        category=category if isinstance(category, str) else "",
    )


def _read_pieces(data: JsonValue) -> tuple[str, ...] | None:
    pieces = data if isinstance(data, list) else []
    if any(isinstance(piece, bool) or not isinstance(piece, str | int | float) for piece in pieces):
        return None
    return tuple(piece if isinstance(piece, str) else str(piece) for piece in pieces)


def _read_number(n: JsonValue, pieces: int) -> int | None:
    if isinstance(n, str) and n.strip().isascii() and n.strip().isdigit():
        n = int(n.strip()[:9])
    return n if isinstance(n, int) and not isinstance(n, bool) and n not in (0, pieces) else None


def _numbers(prompt: str) -> set[int]:
    text = prompt[:MAX_CHARS].lower()
    numbers = {int(digits) for digits in re.findall(r"(?<![\w.])(\d{1,6})(?![\w]|\.\d)", text)}
    return (
        numbers
        | {NUMBERS[word] for word in re.findall(r"[a-z]+", text) if word in NUMBERS}
        | ({2} if re.search(r"\b(?:a (?:couple|pair)|both)\b", text) else set())
    )


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

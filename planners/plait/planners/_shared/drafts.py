"""Drafts of an answer for a prompt: ranked, cut to a number of tokens, with a count of their answers.

The drafts are the records of the merge `synthesis-drafts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from plait.core.result import Result
from plait.core.values import as_text

from .steps import strip_reasoning

SHORT = 80
"""Maximum length of an answer that is counted, in characters. Longer answers are prose and never equal."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The result of one branch."""

    name: str
    text: str
    done: bool = True
    tokens: int = 0
    answer: JsonValue = None
    key: str | None = None
    verified: bool | None = None
    logprob: float | None = None

    @property
    def claim(self) -> str | None:
        """The draft's short answer, or `None` if it has no answer or the answer is prose."""
        text = None if self.answer is None else as_text(self.answer)
        return text if text is not None and len(text) <= SHORT and "\n" not in text else None


def read_drafts(result: Result) -> list[Draft]:
    """Return the drafts in a join's value, in the join's order."""
    drafts: list[Draft] = []
    for record in result.value if isinstance(result.value, list) else ():
        match record:
            case {"name": str(name), "text": str(text), "done": bool(done), "tokens": int(tokens), **rest}:
                key, verified, logprob = rest.get("key"), rest.get("verified"), rest.get("logprob")
                drafts.append(
                    Draft(
                        name,
                        text,
                        done,
                        tokens,
                        rest.get("answer"),
                        key if isinstance(key, str) else None,
                        verified if isinstance(verified, bool) else None,
                        float(logprob) if isinstance(logprob, int | float) else None,
                    )
                )
            case _:
                pass
    return drafts


def find_verified(drafts: Sequence[Draft]) -> Draft | None:
    """Return the first draft with a verified answer."""
    return next((draft for draft in drafts if draft.verified), None)


def rank_drafts(drafts: Sequence[Draft]) -> list[Draft]:
    """Return the drafts, best first. The sort keys are: verified, unjudged, wrong; number of drafts with the same
    answer; mean log-probability; finished before cut off; order."""
    votes = _count_votes(drafts)

    def key(draft: Draft) -> tuple[int, int, float, bool]:
        truth = {True: 0, None: 1, False: 2}[draft.verified]
        count = votes.get(draft.key, 0) if draft.key is not None else 0
        return truth, -count, -(draft.logprob if draft.logprob is not None else float("-inf")), not draft.done

    return sorted(drafts, key=key)


def format_histogram(drafts: Sequence[Draft]) -> str:
    """Return one line with each answer and its number of drafts, most frequent first; empty if no answer is short
    enough to count. A summary can lose a minority's answer; this line does not."""
    votes: dict[str, list[Draft]] = {}
    for draft in drafts:
        if draft.key is not None and draft.claim is not None:
            votes.setdefault(draft.key, []).append(draft)
    if not votes:
        return ""
    parts: list[str] = []
    for same in sorted(votes.values(), key=len, reverse=True):
        wrong = " and wrong" if same[0].verified is False else ""
        parts.append(f"{same[0].claim} ({len(same)} of {len(drafts)}{wrong})")
    silent = len(drafts) - sum(map(len, votes.values()))
    none = f"; no short answer in {silent}" if silent else ""
    return f"Answers of the drafts: {', '.join(parts)}{none}."


def render_block(drafts: Sequence[Draft], most: int, what: str = "Draft") -> str:
    """Return the drafts under headings, numbered from 1, with at most `most` tokens of text in total.

    Short drafts are kept whole; the others share the remaining tokens evenly. Long drafts keep their tail, which holds
    the conclusion. The engine's token count is spread evenly over the characters.
    """
    parts: list[str] = []
    for i, (draft, text) in enumerate(zip(drafts, render_drafts(drafts, most), strict=True), 1):
        state = "" if draft.done else ", stopped before its end"
        parts.append(f"### {what} {i}{state}\n{text}\n")
    return "\n".join(parts)


def render_drafts(drafts: Sequence[Draft], most: int) -> list[str]:
    """Return the drafts' texts, cut as in `block`."""
    texts = [strip_reasoning(draft.text).strip() or draft.text.strip() for draft in drafts]
    shares = _split_tokens(
        [max(1, _count_tokens(draft, text)) for draft, text in zip(drafts, texts, strict=True)], most
    )
    return [
        _cut_text(text, _count_tokens(draft, text), share)
        for draft, text, share in zip(drafts, texts, shares, strict=True)
    ]


def _count_votes(drafts: Sequence[Draft]) -> dict[str, int]:
    votes: dict[str, int] = {}
    for draft in drafts:
        if draft.key is not None:
            votes[draft.key] = votes.get(draft.key, 0) + 1
    return votes


def _count_tokens(draft: Draft, text: str) -> int:
    """Return the number of tokens in the shown part of a draft, estimated as four characters a token if unknown."""
    if draft.tokens > 0 and draft.text:
        return max(1, round(draft.tokens * len(text) / len(draft.text)))
    return (len(text) + 3) // 4


def _split_tokens(wanted: Sequence[int], most: int) -> list[int]:
    """Return each draft's token limit; the sum is `most`. Small drafts are kept whole; the others get equal
    shares."""
    shares = [0] * len(wanted)
    left, waiting = most, len(wanted)
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        shares[i] = min(wanted[i], left // waiting)
        left -= shares[i]
        waiting -= 1
    return shares


def _cut_text(text: str, tokens: int, share: int) -> str:
    if share >= tokens:
        return text
    kept = int(len(text) * share / tokens)
    return "…" + text[len(text) - kept :] if kept else "…"

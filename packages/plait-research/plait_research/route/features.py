"""Features of a request, and of a first answer to it, computed without a model. `route` chooses by them."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable

WORDS = 512
"""Places that words and pairs of words are hashed to."""
_READ = 40_000
"""Characters of a text that are looked at."""
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,6})?")
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+")
_WORD = re.compile(r"\w+")
_GROUPED = re.compile(r"(?<=\d),(?=\d\d\d)")
_NOTE = re.compile(r"<<[^<>]{0,80}>>")
_SUM = re.compile(
    r"(?<![-+*/x×] )(?<![-+*/x×(.\d$])\$?(\d{1,12}(?:\.\d{1,6})?) ?([-+*/x×]) ?\$?(\d{1,12}(?:\.\d{1,6})?)"
    r" ?= ?\$?(\d{1,12}(?:\.\d{1,6})?)"
)
"""A sum of two numbers: before it stands no sign, which would make it a part of a longer one."""
_VOTES = re.compile(r"\b(\d{1,6}) of (\d{1,6}) votes")
_ROUNDED = 0.06
"""By how much the result of a sum may be off: models round to a tenth."""
_DOUBT = (
    "however",
    "but wait",
    "cannot",
    "not enough",
    "assum",
    "unclear",
    "not sure",
    "error",
    "incorrect",
    "mistake",
)


def features(text: str, tools: Iterable[str] = ()) -> dict[str, float]:
    """Return the features of a request: its length, its numbers, names and questions, and the number of tools that
    it mentions. All are small: lengths and numbers are logarithms.

    >>> features("3 5 -> 24")["last"] == math.log1p(24)
    True
    """
    text = text[:_READ]
    words = {word.casefold() for word in _WORD.findall(text)}
    numbers = [float(digits) for digits in _NUMBER.findall(text)]
    # A question with a million in it is not a hundred thousand times as far off as one with a ten.
    logs = [math.log1p(number) for number in numbers] or [0.0]
    mean = sum(logs) / len(logs)
    mentioned = (words & {word.casefold() for word in _WORD.findall(name.replace("_", " "))} for name in tools)
    return {
        "characters": math.log1p(len(text)),
        "numbers": math.log1p(len(numbers)),
        "largest": max(logs),
        "smallest": min(logs),
        "mean": mean,
        "spread": math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)),
        "last": logs[-1],
        "even": sum(number % 2 == 0 for number in numbers) / len(numbers) if numbers else 0.0,
        "names": math.log1p(len(_NAME.findall(text))),
        "questions": math.log1p(text.count("?")),
        "lines": math.log1p(text.count("\n")),
        "operators": math.log1p(sum(map(text.count, ("+", "-", "*", "/", "=")))),
        "tools": math.log1p(sum(map(bool, mentioned))),
    }


def word_features(text: str) -> dict[str, float]:
    """Return the words of a text and the pairs of neighbours, hashed to `WORDS` places, `word.0` and so on: the square
    root of how often each place was met, all divided so that their squares add up to 1. Digits are all the same.

    >>> round(word_features("to be or to be")["word.13"], 2)
    0.47
    """
    words = [_NUMBER.sub("0", word.casefold()) for word in _WORD.findall(text[:_READ])]
    counts: dict[int, int] = {}
    for word in [*words, *(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))]:
        place = zlib.crc32(word.encode()) % WORDS
        counts[place] = counts.get(place, 0) + 1
    norm = math.sqrt(sum(counts.values())) or 1.0
    return {f"word.{place}": math.sqrt(count) / norm for place, count in sorted(counts.items())}


def answer_features(question: str, answer: str, agreed: float | None = None) -> dict[str, float]:
    """Return the features of an answer: its length, whether the sums in it are right, which
    numbers of the question it left out, words of doubt, and which share of the votes it had (`agreed`; 0 if there was
    no vote).

    >>> answer_features("3 apples at 2 each?", "3 * 2 = 7")["answer.wrong-sums"] == math.log1p(1)
    True
    """
    question = _GROUPED.sub("", question[:_READ])
    answer = _GROUPED.sub("", _NOTE.sub("", answer[:_READ]))
    asked, numbers = set(_NUMBER.findall(question)), _NUMBER.findall(answer)
    last = float(numbers[-1]) if numbers else 0.0
    right, wrong = _sums(answer)
    lower = answer.casefold()
    return {
        "answer.characters": math.log1p(len(answer)),
        "answer.lines": math.log1p(answer.count("\n")),
        "answer.numbers": math.log1p(len(set(numbers))),
        "answer.last": math.log1p(last),
        "answer.whole": float(last == int(last)),
        "answer.repeats": float(bool(numbers) and numbers[-1] in asked),
        "answer.left-out": math.log1p(len(asked.difference(numbers))),
        "answer.share-left-out": len(asked.difference(numbers)) / len(asked) if asked else 0.0,
        "answer.right-sums": math.log1p(right),
        "answer.wrong-sums": math.log1p(wrong),
        "answer.any-wrong-sum": float(wrong > 0),
        "answer.equations": math.log1p(answer.count("=")),
        "answer.doubt": math.log1p(sum(map(lower.count, _DOUBT))),
        "answer.agreed": 0.0 if agreed is None else agreed,
    }


def vote_share(why: str) -> float | None:
    """Return the share of the votes that an answer had, as its vote says it; `None` where there was none.

    >>> vote_share("3 of 4 votes")
    0.75
    """
    votes = _VOTES.search(why[:_READ])
    return None if votes is None or not int(votes[2]) else int(votes[1]) / int(votes[2])


def _sums(text: str) -> tuple[int, int]:
    """Count the right and the wrong sums of two numbers in a text, such as `3 * 4 = 12`. Longer
    ones are left alone: where they begin is not known."""
    right = wrong = 0
    for sides in _SUM.finditer(text):
        a, sign, b = float(sides[1]), sides[2], float(sides[3])
        if sign == "/" and b == 0:
            continue
        value = a + b if sign == "+" else a - b if sign == "-" else a / b if sign == "/" else a * b
        if abs(value - float(sides[4])) <= _ROUNDED:
            right += 1
        else:
            wrong += 1
    return right, wrong

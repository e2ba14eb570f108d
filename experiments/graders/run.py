"""How often does a grader agree whether two answers are the same, and is a wrong one ever verified?

Pairs of answers, generated with their truth by kind (`pairs.py`), graded by every mode of `equal` of the task `plain`,
and by math-verify where it is installed; and the cases of math-verify's own tests.

    python -m experiments graders --pairs 2000 --seed 1
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plait.tasks.plain import Plain

from .._tools.base import Table
from .._tools.machine import machine
from .._tools.page import contents, put
from .._tools.statistics import share_text
from .by_others import OTHERS, lm_eval_math
from .by_task import TASKS
from .pairs import KINDS, AnswerPair, pairs

__all__ = ["FOR", "MODES", "Agreement", "by_mode", "cases", "graded"]

HERE = Path(__file__).resolve().parent
MODES = ("exact", "normalised", "number", "expression")
FOR = {
    "whole numbers": "normalised", "decimals": "normalised", "fractions": "normalised", "mixed numbers": "normalised",
    "percentages": "normalised", "words": "normalised", "choices": "normalised", "JSON values": "normalised",
    "whole texts": "normalised",
}  # fmt: skip
"""The mode that a kind is for, where it is not `expression`."""
_SHOWN = 12
"""Disagreements that are kept of a kind and a grader."""
ABOUT = (
    "A share is that of pairs on which a grader is right. Half of the pairs are equal by their making, "
    "two ways to write one value; the others differ, near misses first. A mode that is not for a kind of answer "
    "takes equal ones for different, which costs recall and verifies nothing wrong. math-verify, which may take "
    "a tenth of a second for a pair, grades the first 300 of each kind. lm-eval's equality of MATH answers, one of "
    "texts, grades each pair as it is, without its extraction. In brackets: 95 % intervals (Wilson).\n\n"
    "The modes were fixed with what these pairs found: before, percentages agreed in 54 %, choices in 89 %, "
    "JSON values in 54 %, fractions in 96 %, and of whole texts in 82 %, with 195 of 1,000 wrong ones verified "
    "(an answer stated behind a box that was given up). So read the first table as that of a regression test, "
    "and the last as what the modes do on data that others made. There math-verify finds twice as many equal "
    "ones, in prose, matrices and relations; as it verifies wrong ones, it grades nothing by itself, and the "
    "merge `equivalent` asks it (tool `math_equal`) where a vote is to be over such answers."
)
Grader = Callable[[AnswerPair], bool]


class Agreement(NamedTuple):
    """What a grader said of the pairs of one kind."""

    pairs: int
    missed: list[AnswerPair]
    """Equal, and not taken for equal."""
    verified: list[AnswerPair]
    """Not equal, and taken for equal."""

    @property
    def share(self) -> float:
        """Of pairs on which it agrees with the truth."""
        return 1 - (len(self.missed) + len(self.verified)) / self.pairs

    def shown(self) -> str:
        """Return the share, and how many wrong answers were verified."""
        wrong = f", **{len(self.verified)} wrong verified**" if self.verified else ""
        return f"{share_text(round(self.share * self.pairs), self.pairs, 2)}{wrong}"

    def figures(self) -> dict[str, Any]:
        """Return it for the data, with some of the pairs that it fails on."""
        return {
            "pairs": self.pairs, "agrees": round(self.share, 5), "missed": len(self.missed),
            "verified": len(self.verified), "missed_pairs": [list(each[:2]) for each in self.missed[:_SHOWN]],
            "verified_pairs": [list(each[:2]) for each in self.verified[:_SHOWN]],
        }  # fmt: skip


def by_mode(mode: str) -> Grader:
    """Return the grader of a mode of `equal`: as `plait eval plain` does, the answer is extracted first."""
    task = Plain.model_validate({"text": "?", "equal": mode})
    return lambda pair: task.key(task.extract(pair.given)) == task.key(task.extract(pair.wanted))


def by_math_verify(raw: bool = False) -> Grader:
    """Return math-verify's grader; `raw`: the pair is LaTeX or a text as its own tests give it."""
    library = importlib.import_module("math_verify")
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    task = Plain(text="?")

    def put_in(text: str) -> str:
        return text if raw or "\\boxed" in text else f"${str(task.extract(text)).replace('$', '')}$"

    def grade(pair: AnswerPair) -> bool:
        wanted, given = library.parse(put_in(pair.wanted)), library.parse(put_in(pair.given))
        return bool(library.verify(wanted, given))

    return grade


def graded(found: Sequence[AnswerPair], grade: Grader) -> Agreement:
    """Grade pairs."""
    said = [(pair, grade(pair)) for pair in found]
    return Agreement(
        len(found), [pair for pair, same in said if pair.equal and not same],
        [pair for pair, same in said if same and not pair.equal],
    )  # fmt: skip


def cases() -> list[AnswerPair]:
    """Return the cases of math-verify's tests."""
    said = json.loads((HERE / "data" / "math_verify_cases.json").read_text(encoding="utf-8"))
    return [AnswerPair(wanted, given, equal) for _, wanted, given, equal in said["rows"]]


def main() -> None:
    """Grade all pairs, print the tables, and write the page with `--out`."""
    parser = argparse.ArgumentParser(prog="python -m experiments graders")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--library", type=int, default=300, help="of these, pairs that math-verify grades too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    graders = {mode: by_mode(mode) for mode in MODES}
    try:
        graders["math-verify"] = by_math_verify()
    except ImportError:
        print("math-verify is not installed (pip install math-verify): its column is left out")
    if (same := lm_eval_math()) is not None:
        graders["lm-eval MATH"] = lambda pair: same(pair.given, pair.wanted)
    found: dict[str, dict[str, Agreement]] = {}
    for kind in KINDS:
        made = pairs(kind, given.pairs, given.seed)
        found[kind] = {
            name: graded(made[: given.library] if name == "math-verify" else made, grade)
            for name, grade in graders.items()
        }
        print(f"{kind}: " + "; ".join(f"{name} {each.shown()}" for name, each in found[kind].items()), flush=True)
    public = {mode: graded(cases(), graders[mode]) for mode in MODES}
    if "math-verify" in graders:
        public["math-verify"] = graded(cases(), by_math_verify(raw=True))
    tasks = {name: graded_task(given.pairs, given.seed) for name, graded_task in TASKS.items()}
    if same is not None:
        public["lm-eval MATH"] = graded(cases(), graders["lm-eval MATH"])
    others = [row for harness in OTHERS.values() for row in harness(given.pairs, given.seed)]
    page = _page(
        found, public, tasks, others, f"python -m experiments graders --pairs {given.pairs} --seed {given.seed}"
    )
    for table in page["tables"]:
        print(table["title"], *(" | ".join(row) for row in table["rows"]), sep="\n")
    if given.out:
        print(put(page, given.out))


def _page(
    found: dict[str, dict[str, Agreement]],
    public: dict[str, Agreement],
    tasks: dict[str, tuple[int, int, int]],
    others: list[list[str]],
    command: str,
) -> dict[str, Any]:
    names = list(next(iter(found.values())))
    mode = {kind: FOR.get(kind, "expression") for kind in found}
    rows = [[kind, mode[kind], *(each[name].shown() for name in names)] for kind, each in found.items()]
    best = [each[mode[kind]] for kind, each in found.items()]
    wrong = {name: sum(len(each[name].verified) for each in found.values()) for name in names}
    total = sum(each.pairs for each in best)
    agree = sum(each.share * each.pairs for each in best) / total
    claims = [
        f"In the mode that a kind of answer is for, {agree:.2%} of {total} pairs are graded as they are; "
        f"the least of a kind is {min(each.share for each in best):.2%}.",
        "Wrong answers verified: " + ", ".join(f"{name} {count}" for name, count in wrong.items()) + ".",
    ]
    return contents(
        name="graders",
        title="Graders: do they know when two answers are the same?",
        question="How often does a grader agree with the truth of whether two answers are the same, and is a wrong one "
        "ever verified?",
        command=command,
        machine=[machine()],
        about=ABOUT,
        claims=claims,
        tables=[
            Table("By kind of answer", ["kind", "mode for it", *names], rows),
            Table("By task", ["task", "answers", "agree", "wrong verified"],
                  [[name, str(n), share_text(agree, n, 2), str(bad)] for name, (n, agree, bad) in tasks.items()],
                  "Answers of tasks that verify them, against a computation of the same made here."),
            Table("Beside other harnesses", ["who", "answers", "agree", "right missed", "wrong verified"], others,
                  "The truth is the harness's own verdict; of texts as of gsm8k it is known from their making. A "
                  "verifier of Reasoning Gym may take another solution than the one of its entry, or part of it, which "
                  "no equality knows of; and it may want a full stop or a case that our equality passes over. The rows "
                  "of equality were narrowed after a first look (92.11%, 95 verified): entries without an answer and "
                  "the spelling 13.0 for 13 were left out. What the first table says of our modes and of math-verify "
                  "is of an earlier run of the same command; lm-eval's column and this table were made later."),
            Table("Cases of math-verify's own tests", ["grader", "agree", "equal missed", "different verified"],
                  [[name, share_text(round(each.share * each.pairs), each.pairs, 2), str(len(each.missed)),
                    str(len(each.verified))]
                   for name, each in public.items()],
                  "Facts of its tests (`data/math_verify_cases.json`, Apache-2.0 and MIT). They are what that library "
                  "was made to agree with."),
        ],
        plots=[],
        theirs="",
        figures={"kinds": {kind: {name: each.figures() for name, each in by.items()} for kind, by in found.items()},
                 "cases": {name: each.figures() for name, each in public.items()}},
    )  # fmt: skip

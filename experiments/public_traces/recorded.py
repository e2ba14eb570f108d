"""From the repositories that people published to the facts that the page is made of: answers, lengths and verdicts.

None of their text is kept, and no code.
"""

from __future__ import annotations

import ast
import csv
import json
import operator
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from plait_research.samples.recordings import RecordedSample

from .._tools.recordings import estimated, recorded_samples
from .._tools.samples import Question, questions

__all__ = ["ARMS", "SETS", "Recording", "arms", "perplexities", "votes"]


class Recording(NamedTuple):
    """A set of samples, and where it is from."""

    name: str
    model: str
    task: str
    repository: str
    commit: str
    licence: str
    path: str


_ESC = ("Yiwei98/ESC", "799157a4d21e6d97e86fcd541f5c85d8e3daae0a", "none given")
_TOT = ("princeton-nlp/tree-of-thought-llm", "ab400345c5ea39d28ea6d7d3be0e417b11113c87", "MIT")
_ATTS = ("menik1126/Asynchronous-Test-Time-Scaling", "bedf81d7369af3ea811875feefc5a903e97766ab", "none given")
_LETTERS, _GAME, _MATH = "last letters", "Game of 24", "MATH-500, the first 100"
_NAIVE = "logs/game24/gpt-4_0.7_naive"
_R1 = "deepseek-ai_DeepSeek-R1-Distill-Llama-8B"
_ALONE = f"results/self_{_R1}_math500_sm500_t15_temp0.8_ct1"
_PAIR = f"results/{_R1}_Qwen_QwQ-32B_math500_sm500_em500_t15_smt0.8_sct0.8_emt0.8_smc16_emc4"
SETS = (
    Recording("letters", "GPT-3.5", _LETTERS, *_ESC, "GPT3.5_result/last_letters/T0.7.jsonl"),
    Recording("game-steps", "GPT-4, in steps", _GAME, *_TOT, f"{_NAIVE}_cot_sample_100_start900_end1000.json"),
    Recording("game-direct", "GPT-4, at once", _GAME, *_TOT, f"{_NAIVE}_standard_sample_100_start900_end1000.json"),
    Recording("math-alone", "R1-Distill-Llama-8B", _MATH, *_ATTS, _ALONE),
    Recording("math-pair", "R1-Distill-Llama-8B with QwQ-32B", _MATH, *_ATTS, _PAIR),
)  # fmt: skip
"""What is voted on."""
_ROUTELLM = ("lm-sys/RouteLLM", "0b64fdafe049e596a3f5657c219329f24af24198", "Apache-2.0")
_INTERCODE = ("princeton-nlp/intercode", "c3e46d827cfc9d4c704ec078f7abf9f41e3191d8", "MIT")
ARMS = (
    Recording("gsm8k", "Mixtral-8x7B, GPT-4", "GSM8K", *_ROUTELLM, "routellm/evals/gsm8k/gsm8k_responses.csv"),
    Recording("mmlu", "Mixtral-8x7B, GPT-4", "MMLU", *_ROUTELLM, "routellm/evals/mmlu/responses"),
    Recording("sql", "GPT-3.5, GPT-4", "InterCode-SQL", *_INTERCODE, "data/results/sql"),
)  # fmt: skip
"""What is chosen among."""
_SQL = (
    "gpt-3.5/ic_sql_multiturn_gpt-3.5-1_turns", "gpt-3.5/ic_sql_multiturn_gpt-3.5_10_turns",
    "gpt-3.5/ic_sql_react_10_turns", "gpt-4/ic_sql_multiturn_gpt-4_1_turns", "gpt-4/ic_sql_multiturn_gpt-4_10_turns",
)  # fmt: skip


def votes(recording: Recording, clones: Path) -> list[Question]:
    """Return the samples of a set by question. `clones` holds the repositories by their own names."""
    path = clones / recording.repository.partition("/")[2] / recording.path
    if recording.name == "letters":
        return questions(recorded_samples("esc", path))
    if recording.task == _GAME:
        return questions(_game(path, path.parents[2] / "src" / "tot" / "data" / "24" / "24.csv"))
    return questions(recorded_samples("atts", path, clones / "BiRM" / "data" / "math500" / "test.jsonl"))


def arms(recording: Recording, clones: Path) -> dict[str, list[RecordedSample]]:
    """Return for each model, or way to ask it, one sample a question."""
    path = clones / recording.repository.partition("/")[2] / recording.path
    if recording.name == "gsm8k":
        samples: Iterable[RecordedSample] = recorded_samples("routellm", path)
    elif recording.name == "mmlu":
        samples = _asked(path)
    else:
        samples = [each for name in _SQL for each in recorded_samples("intercode", path / f"{name}.json")]
    found: dict[str, list[RecordedSample]] = {}
    for sample in samples:
        found.setdefault(sample.model, []).append(sample)
    return found


def _asked(path: Path) -> Iterator[RecordedSample]:
    """Yield the samples of MMLU: what was answered is not recorded, and is one letter, so what costs is the question.
    Each question once: some belong to several subjects."""
    seen: set[tuple[str, str]] = set()
    for file in sorted(path.glob("*.csv")):
        for sample in recorded_samples("routellm", file):
            if (sample.question, sample.model) not in seen:
                seen.add((sample.question, sample.model))
                yield sample.model_copy(update={"tokens": estimated(sample.question)})


def perplexities(recording: Recording, clones: Path) -> list[list[list[float]]]:
    """Return, by question and round, the target's perplexities of the segments that a draft wrote."""
    path = clones / recording.repository.partition("/")[2] / recording.path
    by_question: dict[str, dict[int, list[float]]] = {}
    for file in sorted(path.glob("problem_*.json")):
        row = json.loads(file.read_text(encoding="utf-8"))
        rounds = by_question.setdefault(row["question"], {})
        for turn in row["full_history"]:
            if "ppl" in turn:
                rounds.setdefault(turn["turn"], []).append(round(turn["ppl"], 4))
    return [[rounds.get(turn, []) for turn in range(max(rounds, default=-1) + 1)] for rounds in by_question.values()]


# -- Game of 24 --------------------------------------------------------------------------------------------------------


def _game(path: Path, puzzles: Path) -> Iterator[RecordedSample]:
    """Yield GPT-4's answers of Tree of Thoughts (arXiv 2305.10601), read and graded by the rule of its authors: the
    last line up to `=` has each number once and is 24."""
    with puzzles.open(encoding="utf-8", newline="") as file:
        known = [row["Puzzles"] for row in csv.DictReader(file)]
    for row in json.loads(path.read_text(encoding="utf-8")):
        puzzle = known[row["idx"]]
        for text in row["ys"]:
            answer = text.strip().split("\n")[-1].lower().replace("answer: ", "").split("=")[0].replace(" ", "")
            right = sorted(re.findall(r"\d+", answer)) == sorted(puzzle.split()) and _value(answer) == 24
            yield RecordedSample(
                question=puzzle, model="GPT-4", answer=answer if re.search(r"\d", answer) else None, right=right,
                tokens=estimated(text),
            )  # fmt: skip


_SIGNS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _value(expression: str) -> Fraction | None:
    """Return the value of an expression of whole numbers and four signs; `None` for any other text."""

    def of(node: ast.AST) -> Fraction:
        match node:
            case ast.Expression(body=body):
                return of(body)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
                return _SIGNS[type(sign)](of(left), of(right))
            case ast.Constant(value=int() as value):
                return Fraction(value)
            case _:
                raise ValueError(expression)

    try:
        return of(ast.parse(expression, mode="eval"))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None

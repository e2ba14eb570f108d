"""What other harnesses say of the same answers: Reasoning Gym's verifiers, BFCL's checker, lm-eval's extraction.

Each is asked where it is installed. The truth is the harness's own verdict on its own questions; for lm-eval, whose
tasks bring no questions without a download, it is known from how the texts are made.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from plait.apps.common.dataset import drawn_questions
from plait.core.ops import Plugin
from plait.core.tools.calls import call_text
from plait.tasks.plain import Plain
from plait_bench.environments.bfcl import graded
from plait_bench.tasks.data_sets import ReasoningGym

from .._tools.statistics import share_text

__all__ = ["OTHERS", "lm_eval_math"]

Rows = list[list[str]]
"""Of a table: who graded what, answers, agreement, right ones missed, wrong ones verified."""
_BFCL = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple")


def _row(name: str, said: list[tuple[bool, bool]]) -> list[str]:
    """`said`: what is true, and what was found, of each answer."""
    agree = sum(truth == found for truth, found in said)
    missed, wrong = sum(t and not f for t, f in said), sum(f and not t for t, f in said)
    return [name, str(len(said)), share_text(agree, len(said), 2), str(missed), str(wrong)]


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# -- Reasoning Gym -----------------------------------------------------------------------------------------------------


def reasoning_gym(count: int, seed: int) -> Rows:
    """All families that draw within a second or so: right answers in several dresses and wrong ones, read from a text;
    what the family's verifier says of the answer as it stands, beside the equality that votes go by."""
    if not _installed("reasoning_gym"):
        return []
    import reasoning_gym as gym
    from reasoning_gym.factory import DATASETS

    families = [name for name in DATASETS if name != "composite"]
    each = max(2, count // (6 * len(families)))
    votes: list[tuple[bool, bool]] = []
    plain: list[tuple[bool, bool]] = []
    read: list[tuple[bool, bool]] = []
    for family in families:
        dataset = gym.create_dataset(family, size=each, seed=seed)
        entries = [dataset[place] for place in range(each)]
        for place, entry in enumerate(entries):
            asked = json.dumps({"family": family, "question": entry["question"]})
            gym_task, plain_task = ReasoningGym(text=asked), Plain(text="?")
            want, other = str(entry["answer"]), str(entries[place - 1]["answer"])
            for given in dict.fromkeys(_dressed(want, other)):
                truth = _scored(dataset, given.strip(), entry)
                found = gym_task.extract(f"So I think <answer>0</answer> no: <answer>{given}</answer>.")
                read.append((truth, _scored(dataset, str(found), entry)))
                if entry["answer"] is None or given == f"{want}.0":
                    continue  # without an answer there is no equality; and 13.0 is 13, whatever a verifier says
                votes.append((truth, gym_task.key(found) == gym_task.key(want)))
                plain.append((truth, plain_task.key(found) == plain_task.key(want)))
    return [
        _row(f"Reasoning Gym, {len(families)} families: answers read by the task, graded by its verifiers", read),
        _row("… equality of votes of the task beside its verifiers", votes),
        _row("… equality of `plain`, normalised, beside its verifiers", plain),
    ]


def _dressed(want: str, other: str) -> Iterator[str]:
    yield from (want, f" {want} ", f"{want}.0" if re.fullmatch(r"-?\d+", want) else want, other)
    if re.fullmatch(r"-?\d+", want):
        yield from (str(int(want) + 1), str(-int(want)))
    else:
        yield from (want[:-1] or "x", f"{want} {want}")


def _scored(dataset: Any, answer: str, entry: Any) -> bool:
    try:
        return dataset.score_answer(answer=answer, entry=entry) >= 1.0
    except Exception:  # its verifiers raise what they like at an answer that is not of the form
        return False


# -- BFCL --------------------------------------------------------------------------------------------------------------


def bfcl(count: int, seed: int) -> Rows:
    """Calls, right ones and wrong ones, written as a model does and read by the task; its checker grades both."""
    if not _installed("bfcl_eval"):
        return []
    said: list[tuple[bool, bool]] = []
    for category in _BFCL:
        spec = Plugin(name="bfcl", options={"set": category})
        for question in drawn_questions(spec, max(1, count // (10 * len(_BFCL))), seed):
            functions, want = json.loads(question.text)["function"], question.want
            for calls in _calls(want["calls"]):
                pairs = [(name, json.dumps(arguments)) for call in calls for name, arguments in call.items()]
                tagged = "".join(call_text(name, arguments) for name, arguments in pairs)
                listed = json.dumps([{"name": name, "arguments": json.loads(each)} for name, each in pairs])
                for text in (tagged, f"Here they are: {listed}"):
                    read: Any = question.task.extract(text)
                    said.append((graded(functions, calls, want), graded(functions, read or [], want)))
    return [_row(f"BFCL, {len(_BFCL)} categories: calls read by the task, graded by its checker", said)]


def _calls(want: Any) -> Iterator[list[dict[str, dict[str, Any]]]]:
    """Yield right calls, and wrong ones: one more, another order, another name, no arguments."""

    def first(options: Any) -> Any:
        found = next((each for each in options if each != ""), "")
        return {key: first(each) for key, each in found.items() if "" not in each} if isinstance(found, dict) else found

    right = [
        {name: {key: first(each) for key, each in arguments.items() if "" not in each} for name, arguments in c.items()}
        for c in want
    ]
    name, arguments = next(iter(right[0].items()))
    yield from (right, [*right, right[0]], right[::-1], [{f"not_{name}": arguments}, *right[1:]])
    yield [{name: {}}, *right[1:]]


# -- lm-eval -----------------------------------------------------------------------------------------------------------

_ENDS = (
    "That makes {} in all.\n#### {}", "So the answer is {}.\n#### {}", "2 + 3 = 5, so it is {}.\nThe answer is {}.",
    "First 12, then {}.\n\nAnswer: {}", "He pays ${} for 3 of them.\n#### ${}", "It is {} after 2 days.\n\\boxed{{{}}}",
)  # fmt: skip
STRICT, FLEXIBLE = r"#### (\-?[0-9\.\,]+)", r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
"""The filters of lm-eval's task gsm8k (version 3.0, MIT), with what its metric ignores: `,`, `$`, a final full stop."""


def gsm8k(count: int, seed: int) -> Rows:
    """Texts that end in a whole number, right or wrong, read as lm-eval's gsm8k does and as `plain` does."""
    random, task = Random(seed), Plain(text="?", equal="number")
    hashes = Plain(text="?", equal="number", where="regex", pattern="#### (.+)")
    ours, strict, flexible = [list[tuple[bool, bool]]() for _ in range(3)]
    for _ in range(count):
        want, truth = random.randint(0, 20_000), random.random() < 0.5
        value = want if truth else random.choice([want + 1, want * 10 or 7, want + 1000, -want or 5])
        end = random.choice(_ENDS)
        shown = random.choice([f"{value}", f"{value:,}"])
        text = end.format(shown, shown)
        found = (hashes if "####" in text else task).extract(text)
        ours.append((truth, task.key(found) == task.key(str(want))))
        for said, form, last in ((strict, STRICT, 0), (flexible, FLEXIBLE, -1)):
            matches = [next(filter(None, m), "") if isinstance(m, tuple) else m for m in re.findall(form, text)]
            number = re.sub(r",|\$|\.$", "", matches[last].strip()) if matches else "[invalid]"
            said.append((truth, number == str(want)))
    return [
        _row("texts as of gsm8k: `plain`, number (behind `####` by its option `pattern`)", ours),
        _row("… lm-eval, strict-match", strict),
        _row("… lm-eval, flexible-extract", flexible),
    ]


def lm_eval_math() -> Callable[[str, str], bool] | None:
    """Return the equality of lm-eval's tasks hendrycks_math, if lm-eval is installed."""
    found = importlib.util.find_spec("lm_eval") if _installed("datasets") else None
    for folder in found.submodule_search_locations or () if found is not None else ():
        path = Path(folder) / "tasks" / "hendrycks_math" / "utils.py"
        spec = importlib.util.spec_from_file_location("hendrycks_math_utils", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.is_equiv
    return None


OTHERS: dict[str, Callable[[int, int], Rows]] = {"Reasoning Gym": reasoning_gym, "BFCL": bfcl, "lm-eval": gsm8k}
"""By harness: rows of about this number of answers, drawn by a seed."""

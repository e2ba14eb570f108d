"""What the planner of tools reached: each mode on held-out questions, by number of calls.

plan     the plan is executable, and equivalent to the question on random tables
replan   likewise of what is left after failures
joiner   the decision is the right one
react    the answer after turns of one call, calls failing at random
native   the answer after turns of as many calls as can be made
formula, split   the text is exactly the one wanted
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from ..decode import generate
from ..evaluate import wilson
from ..generate import Trace
from ..model import Llama
from . import check
from .generate import Case, Text, formula_trace, joiner_trace, replan_trace, said, split_trace
from .questions import held_out
from .vocab import END, ID, decode, encode

FAILING = 0.1
"""Share of look-ups that fail in the turns."""
MOST_TURNS = 20
STOPS = {END, ID["<END_OF_PLAN>"], ID["<END_OF_RESPONSE>"]}


class Row:
    """Right and asked, by number of calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.right: dict[int, int] = defaultdict(int)
        self.asked: dict[int, int] = defaultdict(int)

    def add(self, size: int, right: bool) -> None:
        """Count one question."""
        self.right[size] += right
        self.asked[size] += 1

    @property
    def share(self) -> float:
        """Share that is right."""
        return sum(self.right.values()) / max(1, sum(self.asked.values()))

    def cells(self) -> list[str]:
        """The row of the table."""
        right, asked = sum(self.right.values()), sum(self.asked.values())
        low, high = wilson(right, asked)
        by = [f"{100 * self.right[n] / self.asked[n]:.0f}" if self.asked[n] else "" for n in range(1, 9)]
        return [self.name, str(asked), f"{100 * right / asked:.1f} % ({100 * low:.1f}–{100 * high:.1f})", *by]


def prompt_of(trace: Trace) -> tuple[list[int], list[int]]:
    """The prompt and what is wanted, of a trace whose model's part is one piece at the end."""
    start = next(at for at, weight in enumerate(trace.weights) if weight)
    return trace.ids[:start], trace.ids[start:]


def evaluate(model: Llama, count: int, seed: int = 2024) -> list[Row]:
    """Every mode on the same held-out questions."""
    cases = [Case(text, seed + at) for at, text in enumerate(held_out(count, seed))]
    rows = [*plans(model, cases), exact(model, cases, "joiner", joiner_trace, seed)]
    rows += [replans(model, cases, seed), reacts(model, cases, seed), natives(model, cases, seed)]
    short = [case for case in cases if len(case.calls) <= 5]
    rows += [exact(model, short, "formula", formula_trace, seed), exact(model, short, "split", split_trace, seed)]
    return rows


def plans(model: Llama, cases: Sequence[Case]) -> list[Row]:
    """Plans from nothing."""
    rows = Row("plan, executable"), Row("plan, equivalent")
    texts = generate(model, [encode(f"<plan>{case.text}\n\n") for case in cases], STOPS, 200)
    for case, ids in zip(cases, texts, strict=True):
        verdict = check.judge_plan(case, decode(ids))
        rows[0].add(len(case.calls), verdict.executable)
        rows[1].add(len(case.calls), verdict.equivalent)
    return list(rows)


def exact(model: Llama, cases: Sequence[Case], name: str, maker: object, seed: int) -> Row:
    """Share of texts that are exactly those of the teacher."""
    assert callable(maker)
    row = Row(name)
    traces: list[Trace] = []
    for at, case in enumerate(cases):
        made = maker(random.Random(f"{seed}/{name}/{at}"), case)
        assert isinstance(made, Text)
        traces.append(made.trace())
    pairs = [prompt_of(trace) for trace in traces]
    texts = generate(model, [prompt for prompt, _ in pairs], STOPS, 300)
    for case, (_, wanted), ids in zip(cases, pairs, texts, strict=True):
        row.add(len(case.calls), ids == wanted)
    return row


def replans(model: Llama, cases: Sequence[Case], seed: int) -> Row:
    """Plans of what is left, judged together with the tasks that were done."""
    row = Row("replan, equivalent")
    traces = [replan_trace(random.Random(f"{seed}/replan/{at}"), case).trace() for at, case in enumerate(cases)]
    pairs = [prompt_of(trace) for trace in traces]
    texts = generate(model, [prompt for prompt, _ in pairs], STOPS, 200)
    for case, (prompt, _), ids in zip(cases, pairs, texts, strict=True):
        row.add(len(case.calls), whole_is_right(case, decode(prompt), decode(ids)))
    return row


def whole_is_right(case: Case, prompt: str, text: str) -> bool:
    """Whether earlier tasks that have a result and the new plan are together a right plan: those that failed are left
    out, so a reference to one makes it wrong."""
    before = prompt.partition("<previous>")[2].removesuffix("<again>") + "\n"
    blocks = before.split("\nObservation: ")
    tasks = [blocks[0], *(block.partition("\n")[2] for block in blocks[1:])]
    values = [block.partition("\n")[0] for block in blocks[1:]]
    kept = [task for task, value in zip(tasks, values, strict=False) if value != "<failed>"]
    return check.judge_plan(case, "\n".join([*kept, text])).equivalent


def reacts(model: Llama, cases: Sequence[Case], seed: int) -> Row:
    """Turns of one call."""
    contexts = [f"<react>{case.text}" for case in cases]
    answers: list[str | None] = [None] * len(cases)
    live, chance = list(range(len(cases))), random.Random(f"{seed}/react")
    stop = {END, ID["\nObservation: "]}
    for _ in range(MOST_TURNS):
        texts = generate(model, [encode(contexts[at]) for at in live], stop, 80)
        going: list[int] = []
        for at, ids in zip(live, texts, strict=True):
            text = decode(ids)
            answers[at] = check.read_finish(text)
            call = check.read_action(text.removesuffix("\nObservation: "))
            if answers[at] is None and call is not None:
                shown = check.observe(cases[at], call, cases[at].facts, lambda call: _fails(call, chance))
                contexts[at] += f"{text}{shown}"
                going.append(at)
        live = going
        if not live:
            break
    return _answered("react, answer", cases, answers)


def natives(model: Llama, cases: Sequence[Case], seed: int) -> Row:
    """Turns of several calls."""
    contexts = [f"<native>{case.text}\n" for case in cases]
    answers: list[str | None] = [None] * len(cases)
    live, chance = list(range(len(cases))), random.Random(f"{seed}/native")
    for _ in range(MOST_TURNS):
        texts = generate(model, [encode(contexts[at]) for at in live], {END}, 200)
        going: list[int] = []
        for at, ids in zip(live, texts, strict=True):
            text = decode(ids)
            calls = check.read_calls(text)
            if calls == []:
                answers[at] = text.removesuffix("<end>")
            elif calls:
                shown = [check.observe(cases[at], c, cases[at].facts, lambda c: _fails(c, chance)) for c in calls]
                contexts[at] += text + "".join(f"<tool_response>{each}</tool_response>\n" for each in shown)
                going.append(at)
        live = [at for at in going if len(encode(contexts[at])) < 900]
        if not live:
            break
    return _answered("native, answer", cases, answers)


def _fails(call: check.Call, chance: random.Random) -> bool:
    return call.tool == "lookup" and chance.random() < FAILING


def _answered(name: str, cases: Sequence[Case], answers: Sequence[str | None]) -> Row:
    row = Row(name)
    for case, got in zip(cases, answers, strict=True):
        row.add(len(case.calls), got == said(check.right_answer(case, case.facts)))
    return row


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    head = ["mode", "n", "right (95 % interval)", *(f"{n} calls" if n > 1 else "1 call" for n in range(1, 9))]
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def report(model: Llama, count: int, seed: int = 2024) -> str:
    """Every mode, as Markdown."""
    return table(evaluate(model, count, seed))

"""Training traces of the planner of tools, drawn on line from a seeded generator, each piece with its loss weight.

Weight 0 means "not written by the model": prompts, results of tools. The plan of a question is the rule-based one
(`questions.calls`), in the question's order. Calls fail at random, so that
every mode sees failures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from pydantic import JsonValue

from plait_bench.tasks.tables.language import Question, read, slots, words
from plait_bench.tasks.tables.questions import PARAMETERS, Facts, carry_out

from ..generate import Trace
from .formula import formula
from .questions import MOST_CALLS, Argument, CallRef, TableCall, calls, draw, is_test
from .vocab import pieces

FAILING = (0.0, 0.0, 0.1, 0.3)
"""Shares of look-ups that fail, one drawn for each trace that shows results."""
MOST_PLANS = 3
MOST_SPLIT = 5
"""Most calls of a question in a request of several, so that five of them fit."""
# Share of examples by mode.
MIXTURE = {"plan": 0.34, "replan": 0.06, "joiner": 0.08, "react": 0.22, "native": 0.08, "split": 0.11, "formula": 0.11}
COPY_WEIGHT = 3.0  # what is copied from results is few pieces, and one slip loses the answer
FAILED = "<failed>"


class Text:
    """A trace in the making: text with weights."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, float]] = []

    def add(self, text: str, weight: float = 0.0) -> None:
        """Append a text of one weight."""
        self.parts.append((text, weight))

    def trace(self) -> Trace:
        """Cut the whole text; a piece has the weight of its first character."""
        cuts = pieces("".join(text for text, _ in self.parts))
        trace = Trace([], [])
        place, end = 0, len(self.parts[0][0])
        for number, at in cuts:
            while at >= end:
                place += 1
                end += len(self.parts[place][0])
            trace.ids.append(number)
            trace.weights.append(self.parts[place][1])
        return trace


class Case:
    """A question with slots, its calls, and the facts that tools give."""

    def __init__(self, text: str, seed: int) -> None:
        self.plain = text
        self.text, self.meaning = slots(text)
        self.question: Question = read(self.text)
        self.calls: list[TableCall] = calls(self.question)
        self.facts = Facts(seed)

    def result(self, call: TableCall, done: Sequence[JsonValue]) -> JsonValue:
        """What a call gives, after those before it."""

        def given(argument: Argument) -> JsonValue:
            if isinstance(argument, CallRef):
                return done[argument.index]
            if isinstance(argument, tuple):
                return [given(each) for each in argument]
            value = self.meaning.get(argument, argument)
            return int(value) if value.isdigit() else value

        return carry_out(call.tool, [given(argument) for argument in call.args], self.facts)


def said(value: JsonValue) -> str:
    """A tool's result as an observation."""
    return value if isinstance(value, str) else json.dumps(value)


def written(call: TableCall, number: dict[int, int] | None = None, done: Sequence[JsonValue] = ()) -> str:
    """A call as plans write it, `add($1, "n0")`, results as references; or, with `done` in place of the tasks'
    numbers, as values."""
    return f"{call.tool}({', '.join(argument(each, number, done) for each in call.args)})"


def argument(each: Argument, number: dict[int, int] | None, done: Sequence[JsonValue]) -> str:
    """An argument of a call, as text."""
    if isinstance(each, CallRef):
        return f"${number[each.index]}" if number is not None else json.dumps(done[each.index])
    if isinstance(each, tuple):
        return f"[{', '.join(argument(part, number, done) for part in each)}]"
    return f'"{each}"'


def plan_text(case: Case, places: Sequence[int], number: dict[int, int]) -> str:
    """The lines of a plan for the calls at these places; their tasks' numbers are written into `number`."""
    lines: list[str] = []
    following = max(number.values(), default=0)
    for place in places:
        following += 1
        number[place] = following
        lines.append(f"{following}. {written(case.calls[place], number)}\n")
    return f"{''.join(lines)}{following + 1}. join()<END_OF_PLAN>"


def scratchpad(case: Case, places: Sequence[int], number: dict[int, int], done: dict[int, str]) -> str:
    """Tasks with what they observed, as the planner's merge writes them. `number` is that of the plan's own tasks."""
    return "".join(
        f"{number[place]}. {written(case.calls[place], number)}\nObservation: {done.get(place, FAILED)}\n"
        for place in places
    )


class Rounds:
    """Plans of one question, one after another, until every call has a result."""

    def __init__(self, rng: random.Random, case: Case, failing: float) -> None:
        self.rng, self.case, self.failing = rng, case, failing
        self.values: dict[int, JsonValue] = {}
        self.number: dict[int, int] = {}
        self.observed = ""

    def open(self) -> list[int]:
        """Places of the calls without a result."""
        return [place for place in range(len(self.case.calls)) if place not in self.values]

    def plan(self, failing: float) -> str:
        """Write the next plan, and observe what its tasks give."""
        case, places = self.case, self.open()
        text = plan_text(case, places, self.number)
        for place in places:
            call = case.calls[place]
            ready = all(need in self.values for need in call.needs())
            if ready and not (call.tool == "lookup" and self.rng.random() < failing):
                known = [self.values.get(at) for at in range(place)]
                self.values[place] = case.result(call, known)
        done = {place: said(value) for place, value in self.values.items()}
        self.observed += scratchpad(case, places, self.number, done)
        return text

    @property
    def failed(self) -> bool:
        """Whether the question's last call has no result."""
        return len(self.case.calls) - 1 not in self.values


def plan_trace(rng: random.Random, case: Case) -> Text:
    """`<plan>QUESTION`, then the plan."""
    out = Text()
    out.add(f"<plan>{case.text}\n\n")
    out.add(plan_text(case, range(len(case.calls)), {}), 1.0)
    return out


def _failing_rounds(rng: random.Random, case: Case, failing: float, most: int) -> Rounds:
    """Rounds, at least one; all of them failed but perhaps the last."""
    rounds = Rounds(rng, case, failing)
    for _ in range(most):
        rounds.plan(failing)
        if not rounds.failed:
            break
    return rounds


def replan_trace(rng: random.Random, case: Case) -> Text:
    """`<replan>QUESTION<previous>SCRATCHPAD<again>`, then the plan of what is left."""
    while True:
        rounds = _failing_rounds(rng, case, rng.choice((0.2, 0.4, 0.7)), rng.choice((1, 1, 1, 2)))
        if rounds.failed and max(rounds.number.values()) + len(rounds.open()) < 30:
            break
    out = Text()
    out.add(f"<replan>{case.text}<previous>{rounds.observed}<again>".replace("\n<again>", "<again>"))
    out.add(rounds.plan(0.0), 1.0)
    return out


def joiner_trace(rng: random.Random, case: Case) -> Text:
    """`<joiner>QUESTION`, the scratchpad, then the decision: the last result, or that another plan is needed. `<last>`
    where there can be none."""
    rounds = _failing_rounds(rng, case, rng.choice(FAILING), rng.choice((1, 1, 1, 2, MOST_PLANS)))
    last = rng.random() < 0.3
    out = Text()
    out.add(f"<{'last' if last else 'joiner'}>{case.text}\n\n{rounds.observed}\n")
    if not rounds.failed:
        out.add("Action: Finish(", 1.0)
        out.add(said(rounds.values[len(case.calls) - 1]), COPY_WEIGHT)
        out.add(")<END_OF_RESPONSE>", 1.0)
    elif last:
        out.add(f"Action: Finish({FAILED})<END_OF_RESPONSE>", 1.0)
    else:
        out.add("Action: Replan(some calls failed)<END_OF_RESPONSE>", 1.0)
    return out


def react_trace(rng: random.Random, case: Case) -> Text:
    """`<react>QUESTION`, then turns of one call each, and the answer."""
    failing = rng.choice(FAILING)
    out = Text()
    out.add(f"<react>{case.text}")
    done: list[JsonValue] = []
    while len(done) < len(case.calls):
        call = case.calls[len(done)]
        out.add("\nAction: ", 1.0)
        out.add(written(call, done=done), 1.0)
        out.add("\nObservation: ", 1.0)
        if call.tool == "lookup" and rng.random() < failing:
            out.add(FAILED)
            continue
        done.append(case.result(call, done))
        out.add(said(done[-1]))
    out.add("\nAction: Finish(", 1.0)
    out.add(said(done[-1]), COPY_WEIGHT)
    out.add(")<end>", 1.0)
    return out


def native_call(call: TableCall, done: Sequence[JsonValue]) -> str:
    """A call as a chat model writes it."""
    args = ", ".join(
        f'"{name}": {argument(each, None, done)}' for name, each in zip(PARAMETERS[call.tool], call.args, strict=True)
    )
    return f'<tool_call>{{"name": "{call.tool}", "arguments": {{{args}}}}}</tool_call>\n'


def native_trace(rng: random.Random, case: Case) -> Text:
    """`<native>QUESTION`, then turns of all the calls that can be made, and the answer."""
    failing = rng.choice(FAILING)
    out = Text()
    out.add(f"<native>{case.text}\n")
    values: dict[int, JsonValue] = {}
    while len(values) < len(case.calls):
        known: list[JsonValue] = [values.get(place) for place in range(len(case.calls))]
        ready = [
            place
            for place, call in enumerate(case.calls)
            if place not in values and all(need in values for need in call.needs())
        ]
        out.add("".join(native_call(case.calls[place], known) for place in ready), 1.0)
        out.add("<end>", 1.0)
        for place in ready:
            call = case.calls[place]
            if call.tool == "lookup" and rng.random() < failing:
                out.add(f"<tool_response>{FAILED}</tool_response>\n")
                continue
            values[place] = case.result(call, known)
            out.add(f"<tool_response>{said(values[place])}</tool_response>\n")
    out.add(said(values[len(case.calls) - 1]), COPY_WEIGHT)
    out.add("<end>", 1.0)
    return out


def formula_trace(rng: random.Random, case: Case) -> Text:
    """One question, or several in one answer, as formulas."""
    out = Text()
    if rng.random() < 0.7:
        out.add(f"write as a formula: {case.text}")
        out.add(f"{formula(case.question)}<end>", 1.0)
        return out
    several = _several(rng, case)
    out.add(request(rng.randrange(2), several))
    lines = "\n".join(f"{number}. {formula(read(each))}" for number, each in enumerate(several, 1))
    out.add(f"\n{lines}<end>", 1.0)
    return out


def split_trace(rng: random.Random, case: Case) -> Text:
    """A request of several questions, then its pieces as JSON; or of one, which cannot be split."""
    out = Text()
    if rng.random() < 0.1:
        out.add(f"<split>write as a formula: {case.text}<go>")
        out.add('{"template": null}<end>', 1.0)
        return out
    several = _several(rng, case)
    out.add(f"<split>{request(rng.randrange(2), several)}<go>")
    data = '", "'.join(several)
    head = '{"template": "write as a formula: {data}", "context": null, "data": ["'
    out.add(f'{head}{data}"], "n": null, "category": "Translation"}}<end>', 1.0)
    return out


def request(form: int, several: Sequence[str]) -> str:
    """A prompt that asks for several formulas."""
    head = ("write each of these questions as a formula:\n", "write these as formulas:\n")[form]
    return head + "\n".join(f"{number}. {each}" for number, each in enumerate(several, 1))


def _several(rng: random.Random, case: Case) -> list[str]:
    found = [case.text]
    while len(found) < rng.randint(2, 5):
        each = slots(_draw(rng, MOST_SPLIT))[0]
        if each not in found:
            found.append(each)
    return found


def _draw(rng: random.Random, most: int) -> str:
    """A question of the training split that takes at most a number of calls."""
    while True:
        text = words(draw(rng, most=most))
        if not is_test(text):
            return text


_MAKERS = {
    "plan": plan_trace, "replan": replan_trace, "joiner": joiner_trace, "react": react_trace, "native": native_trace,
    "split": split_trace, "formula": formula_trace,
}  # fmt: skip


def draw_trace(rng: random.Random, mode: str | None = None) -> Trace:
    """One training trace of a mode drawn from MIXTURE, always from the training split."""
    mode = mode or rng.choices(list(MIXTURE), list(MIXTURE.values()))[0]
    most = MOST_SPLIT if mode in ("split", "formula") else MOST_CALLS
    case = Case(_draw(rng, most), rng.randrange(1 << 30))
    return _MAKERS[mode](rng, case).trace()

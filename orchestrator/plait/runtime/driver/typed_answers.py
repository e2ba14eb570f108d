"""Typed answers: a last step that parses the planner's output by the request's form, with one turn of repair.

If the output is a model's text, or a vote over such texts, those calls request the form directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from pydantic import JsonValue

from ...core.chat import assistant_message
from ...core.errors import CutInForm, FieldError, PlannerError
from ...core.form import Form
from ...core.interfaces import PlanningContext
from ...core.ops import Join, ModelCall, Plugin, Text
from ...core.plan import Plan, Step
from ...core.planning import pass_through
from ...core.request import Request
from ...core.result import Result
from ...core.sampling import Sampling, StructuredOutput
from ...core.view import Branch

OUTPUT = "output"
"""Name of the step that parses the planner's output."""
_TOKENS = 2048
"""Token limit of a turn of repair if the limit of the answer is unknown."""
_SHOWN = 4000
"""Maximum characters of the faulty text in the prompt of a repair."""
_STATE = "form"
_KEPT = 64
_checked: dict[int, Form] = {}
"""Forms with a valid schema, by `id`, the newest last."""


def check_schema(form: Form) -> None:
    """Raise `FieldError` if a form has no valid JSON schema. A form that was checked before, perhaps on a thread, is
    not checked again."""
    if _checked.get(id(form)) is form:
        return
    try:
        _json_schema().check_schema(form.schema_)
    except ValueError as error:
        raise FieldError(f"output: {error}", "output") from None
    while len(_checked) >= _KEPT:
        _checked.pop(next(iter(_checked)), None)
    _checked[id(form)] = form


def with_form(plan: Plan, request: Request) -> Plan:
    """Return a planner's first plan with the step that parses its output by the request's form."""
    # An answer that must call one of the caller's functions has no text, and thus no form.
    form = request.output
    if plan.output is None or form is None or request.tool_choice not in ("auto", "none"):
        return plan
    steps = {step.name: step for step in plan.steps}
    output = steps.get(plan.output)
    asked = [] if output is None else [output.name, *(output.needs if isinstance(output.op, Join) else ())]
    words = f"If you call no function: {form.words}" if request.tools and request.tool_choice == "auto" else form.words
    new = [_asking(step, form, words) if step.name in asked else step for step in plan.steps]
    sizes = [step.op.sampling.max_tokens for step in new if step.name in asked and isinstance(step.op, ModelCall)]
    name = OUTPUT if OUTPUT not in steps else f"{OUTPUT}-of-{plan.output}"
    reading = _reading(name, plan.output, 0, max(sizes, default=_TOKENS))
    return plan.model_copy(update={"steps": (*new, reading), "output": name})


def reads(step: Step, brief: PlanningContext) -> bool:
    """Return whether a step parses the output by the form."""
    return brief.request.output is not None and isinstance(step.state, dict) and _STATE in step.state


def _reading(name: str, branch: str, tries: int, tokens: int) -> Step:
    """Return the step that parses an output; a turn of repair has the same limit of `tokens` as the answer."""
    step = pass_through(name, branch, expands=True)
    return step.model_copy(update={"state": {_STATE: tries, "tokens": tokens}, "label": "typed answer"})


def _asking(step: Step, form: Form, words: str) -> Step:
    """Return a model call that requests the form, in its prompt and from the engine."""
    op = step.op
    if not isinstance(op, ModelCall) or not op.chat or op.sampling.structured is not None or step.expands:
        return step
    sampling = op.sampling.model_copy(update={"structured": structured(form)})
    prompt = (*op.prompt, Text(text=f"\n\n{words}"))
    return step.model_copy(update={"op": op.model_copy(update={"sampling": sampling, "prompt": prompt})})


def structured(form: Form) -> StructuredOutput:
    """Return the structured output to request from engines that support it."""
    return StructuredOutput(kind="json", spec=form.schema_, required=False)


@dataclass(slots=True)
class OutputReader:
    """Reads one output."""

    step: Step
    brief: PlanningContext
    looked: tuple[Result, JsonValue, str] | None = None
    """A result that was parsed before, its value, and its error."""

    def look(self, result: Result) -> None:
        """Parse a result by the form. May be called on a thread, before `close` or `merged`."""
        form = self.brief.request.output
        assert form is not None
        self.looked = (result, *self._value(form, result))

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return no plan: a form is parsed as a whole."""
        return ()

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan:
        """Return the value as a step, or a turn of repair and the step that parses it. Raises `PlannerError`."""
        cut = any(branch.result is not None and branch.result.finish == "length" for branch in branches)
        return self._read(result, cut)

    def close(self, result: Result) -> Plan:
        """Return the same plan for a result with unknown branches."""
        return self._read(result, result.finish == "length")

    def _read(self, result: Result, cut: bool) -> Plan:
        form, state = self.brief.request.output, self.step.state
        assert form is not None
        assert isinstance(state, dict)
        if self.looked is None or self.looked[0] is not result:
            self.look(result)
        assert self.looked is not None
        _, value, wrong = self.looked
        # A call of the caller's function is an answer too, and has no form.
        if self.brief.request.tools and assistant_message(result.text).tool_calls:
            value, wrong = result.text, ""
        if not wrong:
            merge = Plugin(name="constant", options={"value": value, "why": result.why, "data": result.data})
            return Plan(steps=(Step(name="value", op=Join(merge=merge, on_failure="any-end")),), output="value")
        if cut:  # the caller's limit holds for a repair too
            raise CutInForm(f"the answer reached max_tokens before its form was complete: raise max_tokens ({wrong})")
        if state[_STATE]:
            raise PlannerError(f"the answer does not have the form that was asked for, and its repair neither: {wrong}")
        limit = state.get("tokens")
        tokens = limit if isinstance(limit, int) else _TOKENS
        again = self._repair(form, result.text, wrong, tokens)
        return Plan(steps=(again, _reading("repaired", again.name, 1, tokens)), output="repaired")

    def _value(self, form: Form, result: Result) -> tuple[JsonValue, str]:
        def check(value: JsonValue) -> str:
            try:
                faults = _json_schema().faults(form.schema_, value)
            except ValueError as error:
                return str(error)
            return f"at {faults[0].json_path}: {faults[0].message[:300]}" if faults else ""

        return form.read(result.text, check)

    def _repair(self, form: Form, text: str, wrong: str, tokens: int) -> Step:
        question = self.brief.task.render()
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        prompt = f"{question}\n\nThis was answered:\n{shown}\n\nIt cannot be used: {wrong}.\n{form.words}"
        sampling = Sampling(max_tokens=tokens, temperature=0.0, structured=structured(form))
        op = ModelCall(prompt=(Text(text=prompt),), chat=self.brief.task.chat(), sampling=sampling)
        return Step(name="repair", op=op, label="repair of the form")


def _json_schema() -> ModuleType:
    """Return `plait.core.json_schema`."""
    # Imported late: its package takes long to load, and few runs have a form.
    from ...core import json_schema

    return json_schema

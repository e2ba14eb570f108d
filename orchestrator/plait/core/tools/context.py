"""The context of a tool's call, and the question that a tool may put to a person.

A function with a parameter annotated `ToolContext` is given one; the tool's schema does not contain the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, JsonValue

from ..errors import NotAllowed, Unanswered
from ..values import Frozen
from .calls import loads

_YES = ("yes", "y", "allow", "approve", "ok", "true")
_NO = ("no", "n", "deny", "refuse", "false")


class Question(Frozen):
    """A question that a person has to answer before a run can continue."""

    id: str
    """`run:step?n`: the n-th question of that step. The same after a resume."""
    run: str
    step: str
    """Step id."""
    text: str
    choices: tuple[JsonValue, ...] = ()
    """What may be answered; empty where anything may."""
    call: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda call: call is None)
    """Of a question whether a call is allowed: its `tool` and `args`. Other than yes and no, the answer may be
    `{"args": {…}}`, other arguments, and `{"approved": false, "reason": …}`."""

    def check(self, value: JsonValue) -> JsonValue:
        """Return an answer in the form of the choice that it means. Raises `Unanswered` if it matches no choice.

        >>> question = Question(id="r:s?1", run="r", step="r:s", text="Go on?", choices=("yes", "no"))
        >>> question.check(" YES ")
        'yes'
        """
        if self.call is not None:
            return self._verdict(value)
        if not self.choices:
            return value
        for choice in self.choices:
            if value == choice and type(value) is type(choice):
                return choice
        for choice in self.choices:
            if isinstance(value, str) and value.strip().casefold() == str(choice).casefold():
                return choice
        there = ", ".join(map(str, self.choices))
        raise Unanswered(f"{value!r} is no answer to {self.text!r}: answer one of {there}")

    def _verdict(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str) and value.strip().startswith("{"):
            value = loads(value)
        match value:
            case bool():
                return {"approved": value}
            case str() if value.strip().casefold() in _YES:
                return {"approved": True}
            case str() if value.strip().casefold() in _NO:
                return {"approved": False}
            case {"args": dict() as args, **rest} if rest.get("approved", True) is True:
                return {"approved": True, "args": args}
            case {"approved": bool() as approved, **rest} if not rest.keys() - {"reason"}:
                reason = rest.get("reason")
                return {"approved": approved, **({"reason": reason} if isinstance(reason, str) and reason else {})}
            case _:
                raise Unanswered(
                    f'{value!r:.200} is no answer to {self.text!r}: answer yes, no, {{"args": {{…}}}} to change the '
                    'arguments, or {"approved": false, "reason": "…"}'
                )


class Answerer(Frozen):
    """Who answers questions. Whether a call is allowed (`Question.call`) is not answered by who asked for it."""

    name: str = "operator"
    """As the journal names it: `operator`, `user ann`, `tenant ann`."""
    tenant: str = ""
    """The tenant of a server that it is; empty: none, but somebody on the machine itself."""
    approves: bool = True
    """Whether it may allow calls."""

    def check(self, question: Question, asked_by: str) -> None:
        """Raise `NotAllowed` where it may not answer a question of a run that the tenant `asked_by` has submitted."""
        if question.call is None:
            return
        if not self.approves:
            raise NotAllowed(f"{self.name} may not allow calls: `plait runs answer` does, or a tenant that `approves`")
        if self.tenant and self.tenant == asked_by:
            raise NotAllowed(f"{self.name} asked for this call: another has to allow it")


OPERATOR = Answerer.model_construct()


class GivenAnswer(Frozen):
    """An answer as the journal keeps it."""

    value: JsonValue
    by: Answerer
    at: float
    """When, in seconds from 1970."""
    call: dict[str, JsonValue] | None = None
    """What was allowed or denied: the call of the question."""

    def counts(self, question: Question, asked_by: str) -> bool:
        """Whether a resumed run may take it for the answer to a question: given by one who may, for this very call."""
        try:
            self.by.check(question, asked_by)
        except NotAllowed:
            return False
        return self.call == question.call


class ToolContext:
    """The call that a tool serves.

    Attributes:
        run: id of the run.
        step: id of the step, unique among all runs.
        attempt: number of this try, unique among all tries of all steps.
        key: an idempotency key. It stays the same when the step is tried again or its run resumed, and no other step
            has it. Hand it to a service that keeps a request with a known key from taking effect twice.

    >>> from plait import ToolCall, Orchestrator, Plan, Step, ToolContext, tool
    >>> @tool
    ... async def order(what: str, ctx: ToolContext) -> str:
    ...     said = await ctx.ask(f"Order {what}?", choices=["yes", "no"])
    ...     return f"ordered {what}" if said == "yes" else "nothing ordered"
    >>> plan = Plan(steps=(Step(name="o", op=ToolCall(tool="order", args={"what": "tea"})),), output="o")
    >>> with Orchestrator(workers=[], tools=[order], on_ask=lambda question: "yes", journal="off") as plait:
    ...     plait.run(plan=plan).unwrap()
    'ordered tea'
    """

    def __init__(self, run: str, step: str, attempt: int) -> None:
        self.run = run
        self.step = step
        self.attempt = attempt
        self.key = step
        self._asked = 0

    async def ask(self, question: str, choices: Sequence[JsonValue] = ()) -> JsonValue:
        """Put a question to a person and return the answer (one of `choices`, if there are any).

        Question and answer are written to the journal, so a resumed run does not ask again. Raises `Unanswered` if
        no one can be asked.
        """
        return await self._put(self._question(question, choices))

    def ask_and_wait(self, question: str, choices: Sequence[JsonValue] = ()) -> JsonValue:
        """Do the same from a tool that is an ordinary function: it runs on a thread of its own, which waits."""
        return self._put_and_wait(self._question(question, choices))

    def _question(self, text: str, choices: Sequence[JsonValue]) -> Question:
        self._asked += 1
        name = f"{self.step}?{self._asked}"
        return Question(id=name, run=self.run, step=self.step, text=text, choices=tuple(choices))

    async def _put(self, question: Question) -> JsonValue:
        raise Unanswered(f"no one can answer {question.text!r} here: run the tool through an orchestrator")

    def _put_and_wait(self, question: Question) -> JsonValue:
        raise Unanswered(f"no one can answer {question.text!r} here: run the tool through an orchestrator")

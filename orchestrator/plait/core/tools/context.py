"""The context of a tool call, and the question that a tool may ask a person.

A function's parameter annotated `ToolContext` receives the context; the tool's schema omits this parameter.
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
    """`run:step?n`: the n-th question of the step. A resume keeps the id."""
    run: str
    step: str
    """Step id."""
    text: str
    choices: tuple[JsonValue, ...] = ()
    """What may be answered; empty where anything may."""
    call: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda call: call is None)
    """For the approval of a call: its `tool` and `args`. Apart from yes and no, the answer may be `{"args": {…}}` with
    other arguments, or `{"approved": false, "reason": …}`."""

    def check(self, value: JsonValue) -> JsonValue:
        """Return the choice that an answer matches. Raises `Unanswered` if the answer matches no choice.

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
    """A person or tenant who answers questions. A tenant may not approve calls of its own runs (`Question.call`)."""

    name: str = "operator"
    """Name in the journal: `operator`, `user ann`, `tenant ann`."""
    tenant: str = ""
    """The server's tenant; empty for a local user of the machine."""
    approves: bool = True
    """Whether it may allow calls."""

    def check(self, question: Question, asked_by: str) -> None:
        """Raise `NotAllowed` unless this answerer may answer a question of a run of the tenant `asked_by`."""
        if question.call is None:
            return
        if not self.approves:
            raise NotAllowed(f"{self.name} may not allow calls: `plait runs answer` does, or a tenant that `approves`")
        if self.tenant and self.tenant == asked_by:
            raise NotAllowed(f"{self.name} asked for this call: another person must approve it")


OPERATOR = Answerer.model_construct()


class GivenAnswer(Frozen):
    """An answer as the journal keeps it."""

    value: JsonValue
    by: Answerer
    at: float
    """Unix time in seconds."""
    call: dict[str, JsonValue] | None = None
    """The approved or denied call of the question."""
    waited: float = Field(default=0.0, exclude_if=lambda waited: not waited)
    """Seconds between question and answer."""

    def counts(self, question: Question, asked_by: str) -> bool:
        """Return whether a resumed run accepts a recorded answer: an authorised answerer gave it for the same call."""
        try:
            self.by.check(question, asked_by)
        except NotAllowed:
            return False
        return self.call == question.call


class ToolContext:
    """Context of a tool call.

    Attributes:
        run: id of the run. step: id of the step, unique among all runs. attempt: number of the attempt, unique among
        all attempts of all steps. key: an idempotency key. A retry or a resume keeps the key, and no other step has the
        same key. Pass the key to a service that ignores repeated requests with the same key. tenant: the tenant of a
        server that submitted the run; empty for a local user.

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

    def __init__(self, run: str, step: str, attempt: int, tenant: str = "") -> None:
        self.run = run
        self.tenant = tenant
        self.step = step
        self.attempt = attempt
        self.key = step
        self._asked = 0

    async def ask(self, question: str, choices: Sequence[JsonValue] = ()) -> JsonValue:
        """Ask a person a question and return the answer (one of `choices`, if given).

        Question and answer are written to the journal, so a resumed run does not ask again. Raises `Unanswered` if
        no one can be asked.
        """
        return await self._put(self._question(question, choices))

    def ask_and_wait(self, question: str, choices: Sequence[JsonValue] = ()) -> JsonValue:
        """Ask as `ask` does, from a synchronous tool: the tool's own thread waits for the answer."""
        return self._put_and_wait(self._question(question, choices))

    def _question(self, text: str, choices: Sequence[JsonValue]) -> Question:
        self._asked += 1
        name = f"{self.step}?{self._asked}"
        return Question(id=name, run=self.run, step=self.step, text=text, choices=tuple(choices))

    async def _put(self, question: Question) -> JsonValue:
        raise Unanswered(f"no one can answer {question.text!r} here: run the tool through an orchestrator")

    def _put_and_wait(self, question: Question) -> JsonValue:
        raise Unanswered(f"no one can answer {question.text!r} here: run the tool through an orchestrator")

"""What a plan may say: steps, plans, and the requests that they answer.

Everything here is written down somewhere (journal, wire, a planner model's JSON), so everything is a frozen pydantic
model that forbids unknown fields. The docstring under a field is also its JSON-schema description. Only the form is
checked here; `plait.core.graph` and the machine check references.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    JsonValue,
    model_validator,
)

from .budget import Budget
from .chat import Message
from .form import Form
from .ops import Call, Function, Join, LogitBias, Op, Plugin, Ref, Think
from .values import Frozen, StepName, json_references


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


class Step(Frozen):
    """One node of a plan."""

    name: StepName
    """Unique among the steps of its plan (and of the other patches to the same expanding step)."""
    op: Op
    needs: tuple[StepName, ...] = ()
    """Steps that must be done first; for a join, its branches in order. References and `after` are needs by
    themselves."""
    expands: bool = False
    """When it has its value, ask the planner for more plan, whose output then stands in for that value."""
    budget: Budget | None = None
    priority: int = 0
    """Smaller runs first, before any policy's rank."""
    side_effects: bool = False
    """The call changes the world: it is never tried a second time."""
    label: str = ""
    """A few words for people."""
    state: Annotated[JsonValue, BeforeValidator(_none_if_empty)] = Field(
        default=None, validation_alias=AliasChoices("state", "memo"), exclude_if=lambda state: state is None
    )
    """What the planner's reader of this step needs to know again, as JSON; nobody else reads it. Journals of older
    versions call it `memo` and have a text here."""

    @model_validator(mode="after")
    def _join_has_branches(self) -> Step:
        if self.op.kind == "join" and not self.needs and self.op.tolerate != "any-end":
            raise ValueError(f"join {self.name!r} has no branches: name them in `needs`")
        return self

    def token_cost(self) -> float:
        """Return how much it counts in the length of a path: tokens a think step may generate, 1 for a call, 0 for a
        join."""
        match self.op:
            case Think(sampling=sampling):
                return float(sampling.max_tokens)
            case Call():
                return 1.0
            case Join():
                return 0.0

    def references(self) -> Iterator[str]:
        """Names of the steps whose values this one reads, in order, without `after`; may repeat."""
        yield from self.needs
        match self.op:
            case Think(prompt=parts, messages=messages):
                yield from (part.step for part in parts if isinstance(part, Ref))
                if messages:
                    yield from (part.step for each in messages for part in each.parts if part.type == "value")
            case Call(args=args):
                if args:
                    yield from json_references(args)
            case Join():
                pass


class Plan(Frozen):
    """Steps and the name of the one whose value is the plan's. A patch is a plan that stands in for one step's
    value."""

    steps: tuple[Step, ...]
    output: StepName | None = None
    """The step whose value is the answer. Only a patch that is not the last of its step may leave it out; it may also
    name a step of an earlier patch."""
    budget: Budget | None = None
    """Limits on all steps of this plan together (a branch group)."""
    group: str = Field(default="", exclude_if=lambda group: not group)
    """Of a patch: name of the branch group that its steps belong to, together with those of other patches to the same
    step that name it. The first of them says the budget. `a/b` lies inside the group `a`."""

    @model_validator(mode="after")
    def _names_unique(self) -> Plan:
        if len({step.name for step in self.steps}) != len(self.steps):
            seen: set[str] = set()
            twice = next(s.name for s in self.steps if s.name in seen or seen.add(s.name))
            raise ValueError(f"two steps are named {twice!r}")
        return self


class Retries(Frozen):
    """How many more times a step of each kind may be tried after a failure that says it is retryable."""

    think: int = Field(default=2, ge=0)
    call: int = Field(default=1, ge=0)
    lost: int = Field(default=3, ge=0)
    """After a worker was lost; counted apart, for it says nothing about the step."""
    backoff: float = Field(default=0.2, ge=0)
    """Seconds before the first retry; doubled each time. A step whose worker was lost does not wait."""


class Asking(Frozen):
    """What a request may say of all its model calls. A step that says something itself keeps that."""

    stop: tuple[str, ...] = ()
    """Further texts that end an answer."""
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: LogitBias = {}
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning_effort: str | None = Field(default=None, max_length=40)
    chat_template_kwargs: dict[str, JsonValue] = {}
    extra_body: dict[str, JsonValue] = {}
    functions: tuple[Function, ...] = ()
    """Functions that the model may call and the caller runs; for calls that are chats."""


class Request(Frozen):
    """What a user asks of the orchestrator."""

    text: str = ""
    task: Plugin = Plugin(name="plain")
    """What the text means: how it is put to a model, where the answer stands, whether it is right."""
    planner: Plugin = Plugin(name="single")
    policies: tuple[Plugin, ...] = ()
    budget: Budget = Budget()
    retries: Retries = Retries()
    share: str = Field(default="", max_length=200, exclude_if=lambda share: not share)
    """Runs that name the same share divide slots with others as one run would, and go in order of arrival among
    themselves. Each run is a share of its own by default."""
    weight: float = Field(default=1.0, ge=0.001, le=1000, exclude_if=lambda weight: weight == 1)
    """Of its share: one of weight 2 gets twice the tokens of one of weight 1 while both have steps that wait."""
    priority: int = Field(default=0, ge=-1000, le=1000, exclude_if=lambda priority: not priority)
    """Added to that of each step: all that waits with a smaller one goes first, whatever has been served."""
    seed: int = 0
    model: str | None = Field(default=None, exclude_if=lambda model: model is None)
    """Name of the model that answers where a step names none (`Think.model`)."""
    salt: str = Field(default="", exclude_if=lambda salt: not salt)
    """Of the cached prefixes of all steps that have none of their own (`Think.salt`)."""
    messages: tuple[Message, ...] = Field(default=(), exclude_if=lambda messages: not messages)
    """The conversation before `text`, which is its last user's message. It stands before the prompts of all steps that
    are chats and have no messages of their own. Where it ends with results of tools, `text` is the last user's message
    among them, and a step that asks just that gets the conversation alone."""
    form: Form | None = Field(default=None, exclude_if=lambda form: form is None)
    """The form of the answer, where it is to be typed."""
    approve: tuple[str, ...] = Field(default=(), exclude_if=lambda approve: not approve)
    """Tools whose calls a person has to allow first, besides those that say so themselves: by name; `side-effects`: all
    that change the world; `all`."""
    asks: Asking = Field(default=Asking(), exclude_if=lambda asks: asks == Asking())
    """What all model calls ask for that do not say it themselves."""

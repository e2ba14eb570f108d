"""Helpers for planners, public as `plait.planning`: seeds, model calls, pass-through joins, readers."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack, cast

from pydantic import JsonValue

from .budget import Budget
from .call_config import CallConfig
from .chat import Message
from .errors import FieldError, FlowError
from .interfaces import PlanningContext
from .ops import Function, Join, ModelCall, Part, Plugin, Ref, Text, Tokens
from .plan import Plan, Step
from .result import Result
from .sampling import Sampling, StructuredOutput, Thinking, resolve
from .task import Task
from .values import Same
from .view import Branch


def derive(seed: int, *place: int | str) -> int:
    """Return a model call's seed: a 52-bit hash of the request's seed and the call's place in the plan.

    The seed depends on nothing else: sample 3 of 8 equals sample 3 of 64. A double holds 52 bits exactly.
    """
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 12


def fraction(seed: int, *place: int | str) -> float:
    """Return a number in [0, 1) derived from a seed and a place."""
    return derive(seed, *place) / (1 << 52)


class SamplingOptions(TypedDict, total=False):
    """Fields of `Sampling`, as options of a model call."""

    max_tokens: int
    thinking: Thinking
    thinking_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[str, float]
    stop: str | Sequence[str]
    logprobs: int
    top_logprobs: int | None
    reasoning_effort: str | None
    chat_template_kwargs: Mapping[str, JsonValue]
    extra_body: Mapping[str, JsonValue]
    seed: int | None
    """Default: derived from the request's seed and the step's name; none at temperature 0."""
    arithmetic: float | None
    stop_ids: Sequence[int]
    keep_stop: bool
    """On by default in a flow, so that a trajectory continues after its stop text."""
    token_logprobs: bool
    window: int
    labels: Sequence[str]


class CallOptions(SamplingOptions, total=False):
    """A planner's options of a model call beyond its `CallConfig`. They override the `CallConfig`'s. Fields of
    `ModelCall` and `Step` mean what they mean there."""

    form: StructuredOutput | Literal["calls", "choice", "json"] | None
    before: str
    chat: bool
    """Default: the value of the request's task. For a continued trajectory: whether the prompt is the conversation's
    next message; by default, the prompt is appended as text."""
    messages: Sequence[Message]
    """Messages before the prompt; default: the request's."""
    begin: str
    """The start of the model's turn in a chat, or the end of a plain-text prompt. Some servers do not support `begin`,
    and some models repeat it; readers accept both."""
    stream: bool | None
    model: str | None
    salt: str
    tools: Sequence[Function]
    tool_choice: str
    parallel_tool_calls: bool
    label: str
    budget: Budget | None
    priority: int
    expands: bool
    """The planner's `reader` reads the text during generation; the expansion then determines the value."""
    role: str
    """The step's role for that reader."""
    state: JsonValue
    """What that reader needs to know."""


class TrajectoryOptions(CallOptions, total=False):
    """Options of a model call in a flow."""

    name: str
    """The step's name; by default `think-1`, `think-2`, …"""


_CALL: Callable[..., ModelCall] = ModelCall
_STEP: Callable[..., Step] = Step
_OF_STEP = ("label", "budget", "priority", "expands", "role", "state")
_OF_SAMPLING = frozenset(Sampling.model_fields)
NO_THINKING = "<think>\nOkay, I think I have finished thinking.\n</think>\n\n"
"""The start of the model's turn in NoThinking (arXiv 2504.09858): a reasoning block that is closed already."""


def call_model(
    brief: PlanningContext,
    planner: str,
    name: str,
    pieces: str | Sequence[Part],
    prompt: CallConfig | None = None,
    *,
    after: str | None = None,
    **options: Unpack[CallOptions],
) -> Step:
    """Return one call of the model.

    Args:
        brief: the request's. planner: the planner's name, part of a sampled call's seed. name: the step's name, also
        part of the seed. pieces: the prompt, such as the result of `CallConfig.parts`. prompt: the user's configuration
        of the call. after: the step whose trajectory the call continues. options: the planner's own options, which
        override `prompt`.
    """
    has_messages = "messages" in options  # a template would hold them
    chat = brief.task.chat() if after is None else has_messages and bool(options["messages"])
    seed = options["seed"] if "seed" in options else derive(brief.request.seed, planner, name)
    is_checked = bool(pieces) and _PARTS.issuperset(map(type, pieces)) and _NAME.fullmatch(name) is not None
    if is_checked and type(seed) is int and not has_messages:
        options["seed"] = _SEED
        try:
            step, op = _template(Same(prompt), chat, after is not None, (*options.items(),))
        except (TypeError, FieldError):  # an option that is not hashable, or not valid
            options["seed"] = seed
        else:
            update: dict[str, object] = {"prompt": (*pieces, *op.prompt[1:])}
            if op.sampling.seed == _SEED:
                update["sampling"] = op.sampling.model_copy(update={"seed": seed})
            if after is not None:
                update["after"] = after
            return step.model_copy(update={"name": name, "op": op.model_copy(update=update)})
    fields = {"chat": chat, **resolve(options, planner=prompt or {})}
    return _build_call(name, pieces, fields, seed, after)


_PARTS = frozenset({Text, Tokens, Ref})
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
_SEED = 1 << 60
"""Seed in templates, larger than any derived one."""


@functools.lru_cache(maxsize=256, typed=True)
def _template(
    prompt: Same, chat: bool, follows: bool, options: tuple[tuple[str, object], ...]
) -> tuple[Step, ModelCall]:
    """Return a step and its call with some prompt, validated once for all prompts, seeds and names."""
    fields = {"chat": chat, **resolve(dict(options), planner=cast("CallConfig | None", prompt.given) or {})}
    step = _build_call("step", (Text(text="prompt"),), fields, _SEED, "step" if follows else None)
    assert isinstance(step.op, ModelCall)
    return step, step.op


def ask_model(task: Task, name: str, pieces: str, prompt: CallConfig, **options: Unpack[CallOptions]) -> Step:
    """Return a model call for a merge, which knows the task but not the request, so a sampled call has no seed."""
    fields = resolve(options, planner=prompt)
    fields.setdefault("chat", task.chat())
    return _build_call(name, pieces, fields, None)


def _build_call(
    name: str, pieces: str | Sequence[Part], fields: dict[str, object], seed: int | None, after: str | None = None
) -> Step:
    """Return a call with these options."""
    step = {key: fields.pop(key) for key in _OF_STEP if key in fields}
    fields.pop("template", None)
    form = fields["structured"] = fields.pop("form", None)
    if isinstance(form, str):  # the planner makes no such form for this call
        raise FlowError(f"the call {name!r} has no form {form!r} of its own: leave the form out, or write it out")
    sampling = {key: fields.pop(key) for key in list(fields) if key in _OF_SAMPLING}
    stop = sampling.pop("stop", ())
    if stop:
        sampling["stop"] = (stop,) if isinstance(stop, str) else tuple(cast("Sequence[str]", stop))
    # A label is one token; any further text would be discarded.
    if sampling.get("labels"):
        sampling.setdefault("max_tokens", 1)
    if sampling.get("temperature") != 0:
        sampling.setdefault("seed", seed)
    else:
        sampling.pop("seed", None)  # nothing is drawn
    chat = fields.pop("chat")
    given = (Text(text=pieces),) if isinstance(pieces, str) and pieces else pieces
    parts = tuple(cast("Sequence[Part]", given))
    begin = str(fields.pop("begin", "") or "")
    begin = NO_THINKING if begin == "no-thinking" else begin
    if begin and not chat:  # text without roles: the model's turn begins where the prompt ends
        parts, begin = (*parts, Text(text=f"\n{begin}")), ""
    # Raised here with the planner's option names: pydantic's error would name the step's fields.
    unknown = [key for key in fields if key not in ModelCall.model_fields]
    if unknown:
        raise FlowError(f"a model call has no option {', '.join(unknown)}")
    op = _CALL(prompt=parts, chat=chat, begin=begin, sampling=sampling, after=after, **fields)
    return _STEP(name=name, op=op, **step)


def pass_through(
    name: str, branch: str, note: str = "", *, expands: bool = False, allow_failure: bool = False, role: str = ""
) -> Step:
    """Return a join that passes one step's value on. With `allow_failure`, the join ends in `null` if the step fails,
    so that its reader can plan an alternative."""
    merge = Plugin(name="stitch", options={"note": note} if note else {})
    op = Join(merge=merge, on_failure="any-end" if allow_failure else "all")
    return Step(name=name, op=op, needs=(branch,), expands=expands, label=note or name, role=role)


@dataclass(frozen=True, slots=True)
class OnResult:
    """A reader of a step's final result only."""

    read: Callable[[Result], Plan | None]

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return no patch: the text is incomplete."""
        return ()

    def close(self, result: Result) -> Plan | None:
        """Return the plan that follows from the result."""
        return self.read(result)


@dataclass(frozen=True, slots=True)
class OnBranches:
    """A reader of a join that also receives the branches' texts, states and log-probabilities."""

    read: Callable[[Result, Sequence[Branch]], Plan | None]

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return no patch: a join has no text."""
        return ()

    def close(self, result: Result) -> Plan | None:
        """Return the plan that follows from the result alone."""
        return self.read(result, ())

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Return the plan that follows from the result and its branches."""
        return self.read(result, branches)

"""What a request may say besides its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.chat import Message
from ...core.interfaces import Merge, Planner, Policy
from ...core.ops import Function, Plugin
from ...core.task import Task
from ...core.tools.tool import Tool

__all__ = ["Name", "Options", "Own", "ToolLike"]

ToolLike = Tool[..., Any] | Callable[..., Any]
Name = str | Plugin
"""A plugin by name; a string may carry options (`sample:n=16,temperature=0.8`)."""
Own = Callable[..., Any]
"""A function of the caller's: a planner `fn(brief) -> Plan`, a policy's rank `fn(step, view) -> number`, a merge
`fn(branches, task) -> value`, a verifier `fn(answer) -> bool | None`. All but planners run inside the machine and must
be pure. A subclass of `Planner`, `Policy` or `Merge` may stand for one too. A run can be resumed in another process if
that can import it and allows it (`Orchestrator(allow=["pkg.mod:name"])`)."""


class Options(TypedDict, total=False):
    """What a request may say besides its text. What it leaves out, or gives as `None`, is the configuration's."""

    task: Name | Task | type[Task] | None
    """What the text means; `plain` by default."""
    verify: Own | None
    """Judges answers in place of the task."""
    planner: Name | Planner | Own | None
    """How the work is split."""
    policies: Iterable[Name | Policy | Own] | None
    """Order, placement, pruning: ranks are compared one after another, the first to name a place counts, all prune."""
    merge: Name | Merge | Own | None
    """For planners that have this option: how branches become one answer."""
    n: int | None
    """For planners that have this option: how many branches."""
    budget: Budget | None
    """Hard limits."""
    tokens: int | None
    """That limit alone."""
    seconds: float | None
    """That limit alone."""
    tools: Iterable[ToolLike]
    """Functions that this request alone may call, besides the orchestrator's own."""
    seed: int | None
    """Of all sampling."""
    share: str | None
    """Runs that name the same share divide slots with others as one run would; each is a share of its own by default
    (`Request.share`)."""
    weight: float | None
    """Of its share of the slots: with 2 it is served twice the tokens of a run of weight 1, the default."""
    priority: int | None
    """What waits with a smaller one goes first, whatever has been served; 0 by default."""
    model: str | None
    """Name of the model that answers where the plan names none, among those that the workers serve."""
    salt: str | None
    """Cached prefixes are shared only with requests of the same salt: what keeps tenants apart."""
    approve: str | Iterable[str] | None
    """Tools whose calls a person has to allow first: names, `side-effects` or `all`."""
    messages: Sequence[Message | Mapping[str, object]] | None
    """A conversation, as OpenAI's chat API has it. A text beside it is one more message of the user's."""
    output_type: Any
    """The type of `Answer.output`: a pydantic model, a dataclass, a TypedDict, `list[…]`, or a JSON schema."""
    functions: Iterable[Function | Mapping[str, object]] | None
    """Functions that the model may call and you run: its calls stand in `Answer.message`."""
    stop: str | Sequence[str] | None
    """Further texts that end an answer of the model."""
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[str, float] | None
    """By token id, from -100 to 100."""
    top_logprobs: int | None
    """Tell the answer's tokens with their log-probabilities, and so many of the likeliest beside each
    (`Answer.tokens`)."""
    reasoning_effort: str | None
    """How much a model that reasons shall think, in the server's words: `low`, `medium`, `high`."""
    chat_template_kwargs: Mapping[str, JsonValue] | None
    """Values for the model's chat template."""
    extra_body: Mapping[str, JsonValue] | None
    """Further fields of each request to a server."""

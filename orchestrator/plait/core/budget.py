"""Limits on the usage of runs, groups of steps and steps."""

from __future__ import annotations

from collections.abc import Callable
from operator import not_
from typing import Annotated

from pydantic import BeforeValidator, Field

from .errors import FieldError
from .values import Frozen, is_none


def _parse_number(value: object) -> object:
    # In Python `True == 1`, a limit of one token, which no one intends.
    if isinstance(value, bool):
        raise ValueError("it is a number, and this is true or false")
    return value


Count = Annotated[int, BeforeValidator(_parse_number), Field(ge=0)]
Amount = Annotated[float, BeforeValidator(_parse_number), Field(ge=0, allow_inf_nan=False)]


class Budget(Frozen):
    """Hard limits on a run, on the group of steps a plan adds, or on one step with all that it expands into.

    Budgets nest (run > group > step): a step's usage counts against every enclosing budget. The machine enforces
    budgets; policies may only be stricter. `None` means no limit at this level.

    >>> Budget(tokens=-1)
    Traceback (most recent call last):
    ...
    plait.core.errors.FieldError: Budget: `tokens` should be greater than or equal to 0 (got -1)
    """

    tokens: Count | None = Field(
        default=None,
        description="Generated tokens, those of cancelled attempts included. An attempt starts if what such "
        "attempts usually need is left; tokens are counted as workers report them, and when they are used up all that "
        "runs is cut. So the limit is passed by at most one report of each attempt that runs then, and by what an "
        "attempt generated that was lost with its worker and never reported (`strict`).",
    )
    thinking_tokens: Count | None = Field(
        default=None,
        exclude_if=is_none,
        description="Tokens of thoughts, of all attempts; they count into `tokens` too. An attempt reserves all "
        "that it may think, and waits while others may give some back. When they are used up, calls are asked for "
        "without thoughts.",
    )
    prompt_tokens: Count | None = Field(
        default=None,
        exclude_if=is_none,
        description="Prompt tokens, cached ones included, of all attempts. They are counted before an attempt "
        "starts: by the worker, or estimated where it cannot count: a token for four bytes, or what it has reported of "
        "others if that is more. By how much that may be too low is reserved beside it until the attempt has ended.",
    )
    total_tokens: Count | None = Field(
        default=None,
        exclude_if=is_none,
        description="Prompt tokens and generated tokens together. What runs together may pass it by one report "
        "each, and by what its prompts come to beyond their estimates; with `strict` nothing does.",
    )
    seconds: Amount | None = Field(
        default=None,
        description="Wall-clock from when the budget's owner entered the plan. A join whose time is up closes as at "
        "its `deadline`.",
    )
    attempts: Count | None = Field(default=None, description="Dispatches to a worker, retries included.")
    width: Annotated[int, BeforeValidator(_parse_number), Field(ge=1)] | None = Field(
        default=None, description="Attempts at the same time. Further steps wait; none is refused."
    )
    cost: Amount | None = Field(
        default=None,
        description="In the unit of the prices of the models (`[prices]` in the settings), reserved and counted as "
        "tokens are. Where a worker without a price reports an attempt's cost, the cost is known only when the attempt "
        "ends.",
    )
    steps: Count | None = Field(
        default=None,
        description="Steps that may enter the plan, expansions included. In a scope of a flow the step too many "
        "fails; else the plan or patch is refused whole.",
    )
    depth: Count | None = Field(
        default=None,
        exclude_if=is_none,
        description="How deep steps may expand into others: 0 not at all; 1: steps may, and those that they expand "
        "into may not. The step that represents a flow in the plan does not count.",
    )
    turns: Count | None = Field(
        default=None,
        exclude_if=is_none,
        description="Model calls one after another, along any chain of steps: needed, continued, or waited for by a "
        "flow.",
    )
    strict: bool = Field(
        default=False,
        exclude_if=not_,
        description="Reserve for each attempt the most that it may generate, and a token for each byte of a prompt "
        "that was not counted. Nothing passes the limits then, and fewer attempts run at the same time.",
    )

    @classmethod
    def of(cls, text: str) -> Budget:
        """Return the budget for limits given as text. Raises `FieldError`.

        >>> Budget.of("total_tokens=5000, strict=true")
        Budget(total_tokens=5000, strict=True)
        """
        given: dict[str, str] = {}
        for word in text.replace(",", " ").split():
            name, equals, value = word.partition("=")
            if not equals or name in given:
                raise FieldError(
                    f"{word!r} is no limit, or one too many: write {', '.join(cls.model_fields)} as tokens=500"
                )
            given[name] = value
        return _new_budget(**given)

    def __repr__(self) -> str:
        fields = {**self.limits, **({"strict": True} if self.strict else {})}
        return f"Budget({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    __str__ = __repr__

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name.

        >>> Budget(tokens=500, strict=True).limits
        {'tokens': 500}
        """
        return {name: value for name, value in self.__dict__.items() if name != "strict" and value is not None}


_new_budget: Callable[..., Budget] = Budget

"""Patches of which a resumed run has some steps already."""

from __future__ import annotations

from typing import Any, cast

from plait.core.budget import Budget
from plait.core.events import Expanded
from plait.core.ops import ModelCall
from plait.core.plan import Plan, Step
from plait.runtime.journal import resume


def test_a_patch_without_what_is_known_keeps_its_group() -> None:
    steps = tuple(Step(name=name, op=ModelCall(prompt=name)) for name in ("known", "new"))
    event = Expanded(at=0.0, step="r:e", attempt=1, patch=Plan(steps=steps, budget=Budget(tokens=9), group="a/b"))
    left = cast(Any, resume)._without(event, {"known": object()})
    assert left.patch == Plan(steps=steps[1:], budget=Budget(tokens=9), group="a/b")

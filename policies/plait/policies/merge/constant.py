"""Merge `constant`: a value that is there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

__all__ = ["Constant"]


class Constant(Merge):
    """Return the value of its option, whatever the branches say: how a planner puts a value of its own into a plan."""

    plans_more = False

    value: Annotated[JsonValue, Free()] = Field(default=None, description="The value.")
    why: FreeText = Field(default="", description="How it came about, for people.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="What a planner tells programs.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the value."""
        return Verdict(value=self.value, why=self.why, data=self.data)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return `True`: no branch can change it."""
        return True

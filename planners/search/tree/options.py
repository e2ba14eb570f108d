"""Options of the planner `tree`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plait.core.flow import Flow
from plait.core.ops import Plugin
from plait.core.prompt import Prompt, Uses
from plait.core.vocabulary import OnePlugin

from .vote import Weight

__all__ = ["LIST", "TreeOptions"]

LIST = "\nWrite up to {branch} different next steps, each on a line of its own, and nothing else:\n"


class TreeOptions(Flow):
    """The fields of `Tree`."""

    answer_prompts: ClassVar[tuple[str, ...]] = ("step",)

    step: Annotated[Prompt, Uses()] = Prompt(thinking="off", max_tokens=256, temperature=1.0, stop=("\n",))
    """Writes one step of reasoning behind a node; `stop` ends it. At temperature 0 the children of a node are equal."""
    proposal: Annotated[Prompt, Uses("branch")] = Prompt(thinking="off", max_tokens=256, temperature=1.0)
    """With `propose=list`: writes several next steps; `{branch}` is their number."""
    search: OnePlugin = Plugin(name="best-first")
    """The search, by name or as `{"name": …, "options": {…}}`."""
    scorer: OnePlugin = Plugin(name="function")
    """The scorer, by name or as `{"name": …, "options": {…}}`."""
    n: int = Field(default=16, ge=1)
    """Nodes being written or scored at a time."""
    most: int = Field(default=256, ge=1)
    """Most nodes in all."""
    depth: int = Field(default=16, ge=1)
    """Most steps of a path; a node as deep that is no answer is a dead end."""
    propose: Literal["auto", "sample", "list"] = "auto"
    """`sample`: one call a child. `list`: one call writes several next steps, one a line. `auto`: as the search has
    it."""
    branch: int = Field(default=5, ge=1, le=1_000)
    """With `list`: children of a node."""
    until: str = ""
    """A step that has this text in it (case apart) ends its path, besides the model's own end."""
    give_up: str = ""
    """A step that has this text in it (case apart) is a dead end: the model's word for it, where it was told one."""
    answers: int | None = Field(default=None, ge=0)
    """End after so many answers that score at least `threshold`; 0: never; by default as the search has it."""
    threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    """Least score of an answer that counts for `answers`."""
    weight: Weight = "last"
    """An answer's weight in the vote: the score of its last node, or mean, least or product along its path. `best`: no
    vote, the highest score wins (best-of-n). `count`: a majority vote."""
    tools: bool = False
    """A step may call tools, as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; its result is shown to what
    follows. Reading calls are made once a run. A call with side effects gives up all other branches first."""
    style: Literal["serial", "direct"] = "serial"
    """Mode of answering that the task's prompt asks for."""

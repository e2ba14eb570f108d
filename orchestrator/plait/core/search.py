"""Tree search: a tree of partial solutions, its scorers, and the search strategies that choose the next node.

Three kinds of object are kept apart. A `Scorer` estimates a node's value. A `Search` chooses the node that gets the
next child. The grader (`Task.verify`) judges the answer after the run: no search sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import JsonValue

from .declarations import PluginModel
from .step_handles import Chance, Trajectory

if TYPE_CHECKING:
    from .flow import Context

Outcome = Literal["open", "expanded", "answer", "dead", "merged", "pruned"]
"""`open`: the node may get children (or is being written). `expanded`: the node has all its children. `merged`: an
equal state exists already. `pruned`: the search dropped the node."""


@dataclass(slots=True, eq=False)
class SearchNode:
    """A partial solution: its parent's text and one step more."""

    name: str
    """Path from the root by child's numbers: `n`, `n.2`, `n.2.1`."""
    parent: SearchNode | None = None
    depth: int = 0
    index: int = 0
    """Number among its parent's children, from 1."""
    step: str = ""
    """Its own text."""
    key: str = ""
    """State key: nodes with equal keys are equal states. By default the text of the whole path."""
    score: float | None = None
    """In [0, 1]; `None`: unknown (not scored yet, or the scorer failed)."""
    outcome: Outcome = "open"
    gave_up: bool = False
    """Whether the model itself declared the dead end (not its depth or a failure)."""
    tokens: int = 0
    """Tokens of its own text."""
    line: Trajectory | None = None
    """The model call that wrote the node, if its children continue the call's text token for token."""
    seen: str = ""
    """Text shown to the model after the step: the observation of a tool call."""
    answer: JsonValue = None
    children: list[SearchNode] = field(default_factory=list["SearchNode"])
    """Those that have begun, in order."""
    weight: int = 1
    """Itself and the equal states that were merged into it."""
    visits: float = 0.0
    """For searches that count: values that came back through it."""
    value: float = 0.0
    """Their sum."""

    @property
    def text(self) -> str:
        """The text of the path from the root, observations included."""
        return "".join(node.step + node.seen for node in self.path())

    def path(self) -> list[SearchNode]:
        """Return the nodes from the root to this one."""
        nodes: list[SearchNode] = []
        node: SearchNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def below(self) -> Iterator[SearchNode]:
        """Yield the node and all below it."""
        stack: list[SearchNode] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)


class SearchTree:
    """The tree of one run."""

    def __init__(self, random: Chance, width: int) -> None:
        self.root: SearchNode = SearchNode("n", score=0.5)
        self.nodes: list[SearchNode] = [self.root]
        self.random = random
        """The flow's random numbers, the same in a replay."""
        self.width = width
        """Most nodes being written or scored at a time."""
        self.pending: dict[SearchNode, None] = {}
        """Nodes that are being written or scored."""
        self._known = (0.0, 0)
        """Sum and number of the known scores."""

    def scored(self, node: SearchNode, score: float | None) -> None:
        """Set a node's score, once a node."""
        node.score = score
        if score is not None:
            total, count = self._known
            self._known = (total + score, count + 1)

    def prior(self, node: SearchNode) -> float:
        """Return a node's score; for an unknown score, the mean of the known ones (0.5 without any)."""
        if node.score is not None:
            return node.score
        total, count = self._known
        return total / count if count else 0.5

    def prune(self, node: SearchNode) -> None:
        """Give up a node and all below it that is open or pending."""
        for below in node.below():
            if below.outcome == "open":
                below.outcome = "pruned"

    def commit(self, node: SearchNode) -> None:
        """Prune all open or pending nodes outside a node's path and subtree, because its step had an irreversible
        effect."""
        kept = {*node.path(), *node.below()}
        for other in self.nodes:
            if other not in kept and other.outcome == "open":
                other.outcome = "pruned"
        for above in node.path()[:-1]:
            above.outcome = "expanded"

    def live(self) -> list[SearchNode]:
        """Return the nodes whose text an engine still needs: open and pending nodes, and their ancestors."""
        kept: dict[SearchNode, None] = {}
        for node in self.nodes:
            ancestor: SearchNode | None = node if node.outcome == "open" else None
            while ancestor is not None and ancestor not in kept:
                kept[ancestor] = None
                ancestor = ancestor.parent
        return list(kept)

    def resident(self) -> int:
        """Return the unique tokens of the live paths, the prompt's apart."""
        return sum(node.tokens for node in self.live())


class Frontier:
    """One run's search: it receives every ended node and chooses the parent of the next child."""

    reads_steps: ClassVar[bool] = False
    """`take` reads the steps of pending nodes: it is called again as soon as a step is written."""

    def __init__(self, tree: SearchTree) -> None:
        self.tree = tree

    def ended(self, node: SearchNode) -> None:
        """Record a written and scored node: open, an answer, dead, or merged into an equal node."""

    def take(self) -> SearchNode | None:
        """Return the node that gets the next child now. `None`: wait until another node ends; if none is pending, the
        search is over."""
        raise NotImplementedError

    def say(self, node: SearchNode) -> str:
        """Return text that the model sees for a node's next child only, not for deeper nodes."""
        return ""

    async def learn(self, ctx: Context, question: str, node: SearchNode) -> None:
        """Process an ended node with steps of the flow, such as a reflection on a failure."""


class Search(PluginModel):
    """A kind of plugin: chooses the node of a tree that gets the next child. Its fields are its options."""

    answers: ClassVar[int] = 0
    """Default number of answers after which the search ends; 0: it ends at the budget or when no node is left."""
    lists: ClassVar[bool] = False
    """Whether one model call writes all children of a node, one per line, unless the planner overrides it."""

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the search of one run."""
        raise NotImplementedError


class Scorer(PluginModel):
    """A kind of plugin: estimates a node's value. A scorer may make steps of the flow (a model call, a tool call).

    A scorer must not use `Task.verify`, which grades the answer. Each state is scored once per run.
    """

    logprobs: ClassVar[bool] = False
    """Whether it reads the log-probabilities of the node's step."""

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return a score in [0, 1], or `None` if unknown. An exception counts as unknown."""
        raise NotImplementedError

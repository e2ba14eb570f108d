"""Tree search: a tree of partial solutions, what scores them, and what says which of them grows next.

Three kinds of object are kept apart. A `Scorer` says how promising a node is. A `Search` says which node gets the next
child. The grader (`Task.verify`) judges the answer after the run: no search sees it.
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
"""`open`: it may get children (or is being written). `expanded`: it has all the children that it will get. `merged`:
its state was there already. `pruned`: given up by the search."""


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
    """Whether a dead end is one by the model's own word, and not for its depth or a failure."""
    tokens: int = 0
    """Tokens of its own text."""
    line: Trajectory | None = None
    """The model call that wrote it, if its children continue that token for token."""
    seen: str = ""
    """Text that the model is shown behind the step: the observation of a tool call."""
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
        """Return a node's score, or for an unknown one the mean of the known scores (0.5 without any)."""
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
        """Give up all that is open or pending outside a node's path and subtree: its step has an effect that cannot be
        taken back."""
        kept = {*node.path(), *node.below()}
        for other in self.nodes:
            if other not in kept and other.outcome == "open":
                other.outcome = "pruned"
        for above in node.path()[:-1]:
            above.outcome = "expanded"

    def live(self) -> list[SearchNode]:
        """Return the nodes whose text an engine still needs: those that are open or pending, and their ancestors."""
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
    """One run's search: it receives every node that has ended and chooses where the next child begins."""

    reads_steps: ClassVar[bool] = False
    """`take` looks at the steps of pending nodes: it is asked again as soon as one is written."""

    def __init__(self, tree: SearchTree) -> None:
        self.tree = tree

    def ended(self, node: SearchNode) -> None:
        """Take a node that has been written and scored: open, an answer, dead, or merged into an equal one."""

    def take(self) -> SearchNode | None:
        """Return the node that gets its next child now. `None`: none before another node has ended; the search is over
        when nothing is pending then."""
        raise NotImplementedError

    def say(self, node: SearchNode) -> str:
        """Return text that the model is shown for the next child of a node and not below it."""
        return ""

    async def learn(self, ctx: Context, question: str, node: SearchNode) -> None:
        """Do what a node that has ended asks for, with steps of the flow: a reflection on what failed."""


class Search(PluginModel):
    """A kind of plugin: says which node of a tree gets the next child. Its fields are its options."""

    answers: ClassVar[int] = 0
    """Number of answers after which it ends by default; 0: it ends at the budget or when nothing is left."""
    lists: ClassVar[bool] = False
    """It wants all children of a node from one model call, one a line, unless the planner sets it otherwise."""

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the search of one run."""
        raise NotImplementedError


class Scorer(PluginModel):
    """A kind of plugin: says how promising a node is. It may make steps of the flow (a model call, a tool call).

    It must not look at `Task.verify`, which grades the answer. A state is scored once a run: equal ones are merged.
    """

    logprobs: ClassVar[bool] = False
    """It reads the log-probabilities of the node's own step."""

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return a score in [0, 1], or `None` if unknown. An exception counts as unknown."""
        raise NotImplementedError

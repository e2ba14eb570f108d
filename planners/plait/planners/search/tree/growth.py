"""Grows the tree of one run: it writes, merges and scores nodes, and asks the search for the next node."""

from __future__ import annotations

import math
from collections import deque
from typing import cast

from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context
from plait.core.planning import TrajectoryOptions, derive
from plait.core.search import Scorer, Search, SearchNode, SearchTree
from plait.core.step_handles import Promise, StepFailed, Trajectory

from .calls import Calls, strip_call
from .options import LIST, TreeOptions
from .vote import choose


class Growth:
    """Grows the tree of one run. `tree` and `counts` have the outcome."""

    def __init__(self, options: TreeOptions, ctx: Context, question: str) -> None:
        self._options, self._ctx, self._question = options, ctx, question
        self._task = ctx.brief.task
        self._search = cast("Search", ctx.brief.plugin("search", options.search))
        self._scorer = cast("Scorer", ctx.brief.plugin("scorer", options.scorer))
        self.tree = SearchTree(ctx.random, options.n)
        self._frontier = self._search.frontier(self.tree)
        self._calls = Calls(ctx, self.tree, self._cancel_dropped) if options.step.form == "calls" else None
        self._lists = self._search.lists or options.width is not None
        self._width = options.width or 5
        self._enough = self._search.answers if options.quorum is None else options.quorum
        self._states: dict[str, SearchNode] = {"": self.tree.root}
        self._began = 0
        self._waiting: deque[Promise[None]] = deque()
        """Promises of the workers that wait for a node to grow."""
        self._over = ""
        self._trouble = ""
        """The error of the first failed scorer call; empty if there was none."""
        self.answers: list[SearchNode] = []
        """Answer nodes, in the order in which they ended."""
        self.counts = {"unknown": 0, "merged": 0, "dead": 0, "failed": 0}
        self._good = 0
        """Number of answers whose score reaches the threshold."""

    async def answer(self) -> Answerable:
        """Grow the tree until the search, a limit or the budget ends it, and return the vote over the answers."""
        await self._ctx.race(self._work() for _ in range(self._options.n))
        choice = choose(self.answers, self._task, self._options.criterion)
        if choice is None:
            raise PlannerError(
                f"the search found no answer in {self._format_counts()}: give it more nodes, depth or budget"
            )
        return self._ctx.answer(choice.value, f"{choice.why}; {self._format_counts()}")

    def _format_counts(self) -> str:
        nodes = len(self.tree.nodes) - 1
        kinds = [f"{count} {kind}" for kind, count in self.counts.items() if count]
        deepest = max(node.depth for node in self.tree.nodes)
        listed = f" ({', '.join(kinds)})" if kinds else ""
        trouble = f"; a scorer's call failed: {self._trouble}" if self._trouble else ""
        return f"{nodes} nodes{listed}, {deepest} deep; {self._over}{trouble}"

    async def _work(self) -> None:
        """Grow one node after another. Returns when the search is over, which ends the other workers."""
        while True:
            node = self._next()
            if node is not None:
                self._wake()  # another node may be ready
                await self._grow(node)
                self._cancel_dropped()
                self._wake()
            elif self.tree.pending and not self._over:
                changed: Promise[None] = Promise(self._ctx.host)
                self._waiting.append(changed)
                await changed
            else:
                self._over = self._over or "nothing is left to grow"
                return

    def _wake(self) -> None:
        """Wake one waiting worker. If it gets a node, it wakes the next worker. Otherwise no other worker would get one
        either, so the many others stay asleep."""
        if self._waiting:
            self._waiting.popleft().settle()

    def _next(self) -> SearchNode | None:
        if self._over:
            return None
        if self._began >= self._options.max_branches:
            if not self.tree.pending:
                self._over = f"the limit of {self._options.max_branches} nodes is reached"
            return None
        return self._frontier.take()

    async def _grow(self, parent: SearchNode) -> None:
        """Give a node its next child, or several children if one call writes several."""
        if not self._lists:
            await self._grow_one(parent)
            return
        parent.outcome = "expanded"
        self.tree.pending[parent] = None
        try:
            children = await self._write_list(parent)
        finally:
            del self.tree.pending[parent]
        await self._ctx.gather(*(self._settle_and_score(child, finished=False) for child in children))

    async def _grow_one(self, parent: SearchNode) -> None:
        child = self._child(parent)
        told = self._frontier.say(parent)
        try:
            child.line = self._write(parent, child.name, told)
            line = await child.line
        except StepFailed as failed:
            await self._failed(child, failed)
            return
        child.step, child.tokens = line.text, line.tokens
        if told:
            child.line = None  # its children's prompts omit the text that only this call had
        if self._frontier.reads_steps:
            self._wake()
        await self._settle_and_score(child, line.finished)

    async def _write_list(self, parent: SearchNode) -> list[SearchNode]:
        """Call the model for a node's next steps, and return them as children."""
        proposal = self._options.plan
        ask = self._frontier.say(parent) + proposal.text(LIST, width=str(self._width))
        pieces = [f"{self._question}\n{parent.text}{ask}"]
        try:
            line = await self._ctx.think(pieces, proposal, **self._call_options(f"{parent.name}-steps", "next steps"))
        except StepFailed as failed:
            self._check_budget(failed)
            return []
        lines = dict.fromkeys(text.strip() for text in line.text.splitlines() if text.strip())
        children: list[SearchNode] = []
        for text in list(lines)[: self._width]:
            child = self._child(parent)
            child.step, child.tokens = f"{text}\n", max(1, line.tokens // len(lines))
            children.append(child)
        return children

    def _child(self, parent: SearchNode) -> SearchNode:
        index = len(parent.children) + 1
        child = SearchNode(f"{parent.name}.{index}", parent, parent.depth + 1, index)
        parent.children.append(child)
        self.tree.nodes.append(child)
        self.tree.pending[child] = None
        self._began += 1
        return child

    def _write(self, parent: SearchNode, name: str, told: str) -> Trajectory:
        """Request one step after a node, token for token if the node's own call can be continued."""
        prompt, options = self._options.step, self._call_options(name, "step")
        if self._calls is not None:
            options["stop"], options["form"] = (*prompt.stop, "</tool_call>"), None
        if parent.line is not None:
            return parent.line.think([parent.seen + told] if parent.seen or told else (), prompt, **options)
        return self._ctx.think([self._question, parent.text + told], prompt, **options)

    def _call_options(self, name: str, label: str) -> TrajectoryOptions:
        """Return the options of a step's call. Its seed depends on its name, which is its place in the tree."""
        seed = derive(self._ctx.brief.request.seed, "tree", name)
        options: TrajectoryOptions = {"name": name, "label": label, "seed": seed}
        if self._scorer.logprobs:
            options["logprobs"] = 1
        return options

    # -- what became of a node ----------------------------------------------------------------------------------------

    async def _settle_and_score(self, node: SearchNode, finished: bool) -> None:
        """Set a node's outcome, score the node, and report it. A node that was pruned meanwhile makes no call."""
        if node.outcome == "pruned":
            self.done(node)
            return
        try:
            await self._settle(node, finished)
        except StepFailed as failed:
            await self._failed(node, failed)
            return
        self.done(node)
        await self._frontier.learn(self._ctx, self._question, node)

    async def _settle(self, node: SearchNode, finished: bool) -> None:
        text = node.text
        node.key = self._task.state_key(text) or " ".join(text.split())
        known = self._states.get(node.key)
        if known is not None and known is not node:
            known.weight += 1
            node.outcome = "merged"
            self.tree.scored(node, known.score)
            return
        self._states[node.key] = node
        if self._calls is not None and not finished:
            await self._calls.make(node)
        message = strip_call(node.step) if self._calls is not None else node.step
        if _has(message, self._options.give_up):
            node.outcome, node.gave_up = "dead", True
            return
        whole = finished or self._task.complete(text) or _has(message, self._options.until)
        if whole or node.depth >= self._options.depth:
            node.answer = self._task.extract(text)
            if node.answer is None:
                node.outcome = "dead"
                return
        self.tree.scored(node, await self._score(node))
        if node.answer is not None and node.outcome == "open":
            node.outcome = "answer"

    async def _score(self, node: SearchNode) -> float | None:
        score: float | None = None
        try:
            mark: object = await self._scorer.score(self._ctx, self._question, node)
            if isinstance(mark, int | float) and not isinstance(mark, bool) and math.isfinite(mark):
                score = min(max(float(mark), 0.0), 1.0)
        except StepFailed as failed:
            self._check_budget(failed)
            self._trouble = self._trouble or failed.failure.message
        except Exception:  # A third-party scorer may raise anything; the node's score is then unknown.
            score = None
        self.counts["unknown"] += score is None
        return score

    async def _failed(self, node: SearchNode, failed: StepFailed) -> None:
        self._check_budget(failed)
        if node.outcome == "open":
            node.outcome = "dead"
            self.counts["failed"] += 1
        self.done(node)

    def _check_budget(self, failed: StepFailed) -> None:
        if failed.failure.kind == "BudgetExceeded":
            self._over = "the budget is used up"

    def done(self, node: SearchNode) -> None:
        """Report an ended node to the search."""
        self.tree.pending.pop(node, None)
        if node.outcome in ("merged", "dead"):
            self.counts[node.outcome] += 1
        if node.outcome == "answer":
            self.answers.append(node)
            self._good += (node.score or 0.0) >= self._options.threshold
        self._frontier.ended(node)
        if self._enough and self._good >= self._enough:
            self._over = f"{self._enough} answer{'s are' if self._enough > 1 else ' is'} enough"

    def _cancel_dropped(self) -> None:
        """Cancel the calls of nodes that the search has pruned."""
        for node in self.tree.pending:
            if node.outcome == "pruned" and node.line is not None and not node.line.ended:
                self._ctx.cancel(node.line, "pruned by the search")


def _has(step: str, text: str) -> bool:
    return bool(text) and text.casefold() in step.casefold()

"""Scorers: `judge`, `model`, `function`, `logprob`, `tool`."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses, WithCallConfigs
from plait.core.declarations import Fidelity, Free, ToolName
from plait.core.flow import Context, Trajectory
from plait.core.sampling import StructuredOutput
from plait.core.search import Scorer, SearchNode

__all__ = ["FunctionScorer", "Judge", "Logprob", "Model", "ToolScorer"]

_SIBLINGS = 2
"""Most earlier siblings that a node is compared with, the latest ones."""
_LETTERS = StructuredOutput(kind="choice", spec=["A", "B"], required=False)
PROMPT = """{question}

Two attempts at this, so far:

A:
{a}

B:
{b}

Which is closer to a right answer? Reply with A or B.
"""


class Judge(WithCallConfigs, Scorer):
    """Scores a node by the share of comparisons with earlier siblings that it wins. Each comparison runs in both
    orders, since judges favour a position (ToolLLM's ranking, arXiv 2307.16789). A pair is a draw if the orders
    disagree; it does not count if either order gives no decision. Without a sibling the score is 0.5.
    """

    fidelity = Fidelity("variant", "one comparison with siblings, in both orders", paper="2307.16789")

    judge: Annotated[CallConfig, Uses("question", "a", "b")] = Field(
        default=CallConfig(max_tokens=8, form="choice"),
        description="Asks for the better. Its template has `{question}`, `{a}` and `{b}`. `form=choice`: an engine "
        "that can allows nothing but A or B.",
    )

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return (wins + half the draws) / pairs."""
        siblings = [] if node.parent is None else node.parent.children
        # A sibling without text is still being written.
        others = [other for other in siblings if other is not node and other.step]
        others = [other for other in others if other.outcome not in ("dead", "merged")][-_SIBLINGS:]
        if not others:
            return 0.5
        asked = [self._ask(ctx, question, *pair) for other in others for pair in ((node, other), (other, node))]
        # All calls are made before the first is awaited, so they run in parallel.
        replies = [await call for call in asked]
        votes = [_read_verdict(line.text) for line in replies]
        pairs = [pair for pair in zip(votes[::2], votes[1::2], strict=True) if None not in pair]
        wins = sum((first == "A") + (second == "B") for first, second in pairs)
        return wins / (2 * len(pairs)) if pairs else None

    def _ask(self, ctx: Context, question: str, a: SearchNode, b: SearchNode) -> Trajectory:
        asked = self.judge.text(PROMPT, question=question, a=a.text, b=b.text)
        form = _LETTERS if self.judge.form == "choice" else self.judge.form
        return ctx.think(asked, self.judge, label="judge", form=form)


def _read_verdict(text: str) -> Literal["A", "B"] | None:
    for letter in text.strip().upper()[:1]:
        if letter in ("A", "B"):
            return letter
    return None


ASK = "\n\nHow promising is the solution so far, from 0 (hopeless) to 9 (certain to be right)? One digit:\n"


class Model(WithCallConfigs, Scorer):
    """Scores by the expected mark: the model writes one of `labels` after the path's text, and each label's value
    (evenly spaced from 0 to 1) is weighted by its probability. So one token distinguishes 3.6 from 4.4, where a sampled
    mark would be 4.

    Example with the marks 0, 1 and 2: the probability of 2 is 0.6, of 1 is 0.2, and of other text is 0.2. The score is
    (0.6 · 1 + 0.2 · 0.5) / 0.8 = 0.875.

    The call continues the node's call token for token, so its prefix is cached. The worker must report the labels'
    probabilities: the local engine does, and so do servers that list the likeliest tokens. After the value prompt of
    Tree of Thoughts (arXiv 2305.10601), which samples three words and adds up their values.
    """

    fidelity = Fidelity("variant", "the expected mark of one token", paper="2305.10601")

    judge: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(),
        description="The call. Its template is put behind the path's text; the model's next token is the mark. By "
        "default the model that writes the steps is asked.",
    )
    labels: Annotated[tuple[str, ...], Field(min_length=2, max_length=64), Free()] = Field(
        default=tuple("0123456789"), description="The marks, from worst to best. Each must be one token of the model's."
    )

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the expected value of the labels, with their probabilities scaled to sum to 1."""
        ask = self.judge.text(ASK)
        # Another model has no context of this path, so its prompt has the text.
        if node.line is not None and self.judge.model is None:
            line = node.line.think([node.seen + ask], self.judge, labels=self.labels, label="score")
        else:
            line = ctx.think([question, node.text + ask], self.judge, labels=self.labels, label="score")
        labels = (await line).labels
        last = len(self.labels) - 1
        # A label that the worker does not list is less likely than all listed labels and counts as 0.
        shares = [math.exp(labels[label]) if label in labels else 0.0 for label in self.labels]
        total = sum(shares)
        return sum(share * i / last for i, share in enumerate(shares)) / total if total else None


class FunctionScorer(Scorer):
    """Scores by `Task.value` of the text so far; the score is unknown if the task has no value.

    A function of your own is a scorer too: `scorer=their_pkg.mod:name`, with `name(question, text)` that returns a
    number in [0, 1], or `None` if it cannot tell.
    """

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the task's value."""
        return ctx.brief.task.value(node.text)


class Logprob(Scorer):
    """Scores by the mean probability of a step's tokens, `e^(mean log-probability)`, without a further call.
    `over="path"` takes all tokens from the root on. Steps that were proposed in a list have no score."""

    logprobs: ClassVar[bool] = True

    over: Literal["step", "path"] = Field(default="step", description="What is averaged over.")

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the mean probability."""
        nodes = [node] if self.over == "step" else node.path()[1:]
        known = [(node.tokens, node.line.logprob) for node in nodes if node.line is not None]
        # The mean is over all tokens of the path, so a long step has more weight than a short one.
        pairs = [(tokens, mean) for tokens, mean in known if mean is not None and tokens]
        total = sum(tokens for tokens, _ in pairs)
        return math.exp(sum(tokens * mean for tokens, mean in pairs) / total) if total else None


class ToolScorer(Scorer):
    """Calls a tool with `text` (the path's text) and the fields of `args`. It returns a number in [0, 1], a boolean,
    or `{"passed": …, "total": …}`."""

    tool: Annotated[str, ToolName()] = Field(description="Name of the tool.")
    args: Annotated[dict[str, JsonValue], Free()] = Field(default={}, description="More arguments.")
    question: bool = Field(default=False, description="Give it the request as `question`, too.")

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the tool's number."""
        more: dict[str, object] = {"question": question} if self.question else {}
        call = ctx.call(self.tool, text=node.text, **self.args, **more)
        match await call:
            case bool() | int() | float() as number:
                return float(number)
            case {"passed": int() | float() as passed, "total": int() | float() as total} if total:
                return float(passed) / float(total)
            # An invalid score does not rate the text: it is unknown, not 0.
            case _:
                return None

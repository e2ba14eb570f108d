"""Planner `deepprune`: many beginnings, of which one of each group with the same expected answer goes on.

The merges `distinct` and `alike` group the beginnings; this file plans the steps before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.errors import PlannerError
from plait.core.interfaces import Brief, Planner, Reader
from plait.core.ops import Join, Plugin, Sampling, Text, Think
from plait.core.plan import Plan, Step
from plait.core.result import Result

from .._shared.seeds import derive

__all__ = ["DeepPrune"]


class DeepPrune(Planner):
    """Redundancy pruning after DeepPrune (arXiv 2510.08483), with another judge in place of its trained one.

    `n` samples write `prefix` tokens each. The judge groups the beginnings that it expects to come to the same answer.
    One beginning of each group goes on, token for token, and the vote counts it once for each beginning of its group,
    so pruning does not favour rare answers. By default the judge is a probe: after each beginning's own context (which
    the prefix cache holds) the model is asked for the answer so far, in a few greedy tokens; equal answers are one
    group, and a probe without an answer ("I am not sure yet") is a group of its own. Other judges are an embedding of
    the beginnings, or a model that compares two of them (merge `alike`).

    Differs from the paper: the judge; groups are made when all beginnings are there, not one after another; the number
    of groups is not capped. The policy `redundant` prunes while branches generate. Defaults: 16 beginnings of 500
    tokens, probes of 8 tokens, temperature 1; the paper's own figures are not published.
    """

    n_option: ClassVar[str | None] = "n"

    n: int = Field(default=16, ge=1)
    """Beginnings."""
    prefix: int = Field(default=500, ge=1)
    """Tokens of a beginning."""
    max_tokens: int = Field(default=4096, ge=2)
    """Most tokens of a whole sample."""
    judge: Literal["probe", "embedding", "model"] = "probe"
    """How beginnings are grouped: a `probe` of each; `embedding`, by the run's tool `embed`, which makes vectors of
    texts; or a `model` that is asked about pairs."""
    alike: dict[str, JsonValue] = {}
    """Options of the merge `alike`, for the judges `embedding` and `model`: `threshold`, `model`, `graded`, …"""
    probe: str = "\n\nSo the answer is"
    """Text added to a beginning to ask for its answer so far."""
    probe_tokens: int = Field(default=8, ge=1)
    """Most tokens of that answer."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Of the samples; probes are greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    early: bool = False
    """Close the vote as soon as it is certain."""

    def start(self, brief: Brief) -> Plan:
        """Return the beginnings `sample-i`, their probes, and the join `clusters`, which expands into the rest. With
        another judge `clusters` expands into the judge's calls, and the join `onward` expands into the rest."""
        prompt = (Text(text=brief.task.render()),)
        steps: list[Step] = []
        pairs: list[JsonValue] = []
        for i in range(1, self.n + 1):
            sampling = self._sampling(brief, "begin", i, min(self.prefix, self.max_tokens - 1))
            op = Think(prompt=prompt, chat=brief.task.chat(), sampling=sampling)
            steps.append(Step(name=f"sample-{i}", op=op, label=f"beginning {i}"))
            if self.judge != "probe":
                continue
            ask = Think(after=f"sample-{i}", prompt=self.probe, sampling=Sampling(max_tokens=self.probe_tokens))
            steps.append(Step(name=f"probe-{i}", op=ask, label="answer so far"))
            pairs.append({"trace": f"sample-{i}", "probe": f"probe-{i}"})
        needs = tuple(step.name for step in steps)
        if self.judge == "probe":
            join = Join(merge=Plugin(name="distinct", options={"pairs": pairs}), tolerate="best-effort")
            steps.append(Step(name="clusters", op=join, needs=needs, expands=True, label="which go on"))
            return Plan(steps=tuple(steps), output="clusters")
        merge = Plugin(name="alike", options={**self.alike, "ask": self.judge})
        join = Join(merge=merge, tolerate="best-effort")
        steps.append(Step(name="clusters", op=join, needs=needs, label="which are alike"))
        steps.append(Step(name="onward", op=Join(), needs=("clusters",), expands=True, label="which go on"))
        return Plan(steps=tuple(steps), output="onward")

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return the reader of `clusters`, or of `onward`."""
        if step.name not in ("clusters", "onward"):
            return super().reader(step, brief)
        return _Clusters(self, brief)

    def rest(self, heads: JsonValue, brief: Brief) -> Plan:
        """Return how the representatives go on, and the vote over them. Raises `PlannerError` if there are none."""
        steps: list[Step] = []
        names: list[str] = []
        weights: dict[str, JsonValue] = {}
        for head in heads if isinstance(heads, list) else []:
            match head:
                case {"trace": str(trace), "count": int(count), "done": bool(done)}:
                    name = trace
                    if not done:
                        name = trace.replace("sample-", "rest-")
                        left = self.max_tokens - min(self.prefix, self.max_tokens - 1)
                        sampling = self._sampling(brief, "rest", int(trace.rpartition("-")[2]), left)
                        steps.append(Step(name=name, op=Think(after=trace, sampling=sampling), label=f"for {count}"))
                    names.append(name)
                    weights[name] = count
                case _:
                    raise PlannerError(f"{head!r} is no cluster: it needs `trace`, `count` and `done`")
        if not names:
            raise PlannerError("no beginning is left to go on with")
        merge = Plugin(name="majority", options={"weights": weights})
        vote = Join(merge=merge, tolerate="best-effort", early=self.early)
        steps.append(Step(name="vote", op=vote, needs=tuple(names), label=f"majority of {len(names)} clusters"))
        return Plan(steps=tuple(steps), output="vote")

    def _sampling(self, brief: Brief, what: str, index: int, tokens: int) -> Sampling:
        seed = derive(brief.request.seed, what, index) if self.temperature else None
        return Sampling(max_tokens=tokens, temperature=self.temperature, top_p=self.top_p, seed=seed)


class _Clusters:
    """Reads the clusters and plans the rest."""

    def __init__(self, planner: DeepPrune, brief: Brief) -> None:
        self.planner, self.brief = planner, brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan:
        heads = result.value
        if self.planner.judge != "probe" and isinstance(heads, list) and heads:
            heads = heads[0]  # of the one branch that `onward` collects
        return self.planner.rest(heads, self.brief)

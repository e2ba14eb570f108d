"""Planner `deepprune`: many beginnings, and one of each group with the same expected answer continues.

The merges `distinct` and `alike` group the beginnings; this file plans the steps before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Access, Fidelity
from plait.core.errors import PlannerError
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Join, Part, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import call_model
from plait.core.vocabulary import Early, N, OnePlugin
from plait.planners._shared.steps import OnResult, derive, through

__all__ = ["DeepPrune"]

_NOT_CALIBRATED = "not calibrated: which beginnings are alike is a mark, and no measured chance"


class DeepPrune(Planner):
    """Redundancy pruning after DeepPrune (arXiv 2510.08483), with another judge in place of its trained one.

    `n` samples write the tokens of `draft` each. A judge groups the beginnings that it expects to reach the same
    answer. One beginning of each group continues from its exact tokens, and its vote has the weight of its group, so
    pruning does not favour rare answers. By default the judge is a probe: behind each beginning's own context (which
    the prefix cache holds) the model gives the answer so far, in a few greedy tokens. Equal answers form one group, and
    a probe without an answer ("I am not sure yet") is a group of its own. Other judges are an embedding of the
    beginnings, or a model that compares two of them (merge `alike`). plait cannot learn their accuracy from its own
    runs: only one of several similar beginnings continues, so the answers of the others stay unknown.

    Differs from the paper: the judge; groups form when all beginnings are there, not one after another; the number of
    groups has no limit. The policy `redundant` prunes while branches generate. Defaults: 16 beginnings of 500 tokens,
    probes of 8 tokens, temperature 1; the paper does not publish its own settings.
    """

    fidelity = Fidelity("variant", "equality of answers so far, not their trained judge", paper="2510.08483")
    lost_in = ("erring_votes", "votes_live")

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=500),
        description="The beginning of a sample, with its token limit. Unset fields have the values of "
        "`answer`. Its template has "
        "`{question}`.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=4096, temperature=1.0),
        description="The samples; `max_tokens` are those of a whole one, its beginning included. Their template has "
        "`{question}`.",
    )
    probe: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off", max_tokens=8, temperature=0.0),
        description="The question for a beginning's answer so far, after the beginning.",
    )
    n: N = 16
    groups: Annotated[OnePlugin, Access("merge")] = Field(
        default=Plugin(name="distinct"),
        description="The merge that groups beginnings: `distinct`, by a probe of each, or `alike`, by an embedding "
        "of the beginnings (the run's tool `embed`) or a model that is asked about pairs: `alike:ask=embedding`, "
        "`alike:ask=model`.",
    )
    early: Early = False

    def start(self, brief: PlanningContext) -> Plan:
        """Return the beginnings `sample-i`, their probes, and the join `clusters`, which expands into the rest. With
        another judge `clusters` expands into the judge's calls, and the join `onward` expands into the rest."""
        draft = self.draft.over(self.answer)
        pieces = draft.parts("{question}", question=brief.task.render())
        steps: list[Step] = []
        pairs: list[JsonValue] = []
        probed = self.groups.name == "distinct"
        for i in range(1, self.n + 1):
            begin, probe = f"sample-{i}", f"probe-{i}"
            steps.append(self._part(brief, begin, pieces, draft, ("begin", i), self._prefix_tokens, f"beginning {i}"))
            if not probed:
                continue
            ask = self.probe.parts("\n\nSo the answer is")
            steps.append(call_model(brief, "deepprune", probe, ask, self.probe, after=begin, label="answer so far"))
            pairs.append({"trace": begin, "probe": probe})
        needs = tuple(step.name for step in steps)
        if probed:
            join = Join(merge=Plugin(name="distinct", options={"beginnings": pairs}), on_failure="best-effort")
            steps.append(Step(name="clusters", op=join, needs=needs, expands=True, label="which go on", role="onward"))
            return Plan(steps=tuple(steps), output="clusters")
        join = Join(merge=self.groups, on_failure="best-effort")
        steps.append(Step(name="clusters", op=join, needs=needs, label="which are alike"))
        steps.append(
            Step(name="onward", op=Join(), needs=("clusters",), expands=True, label="which go on", role="onward")
        )
        return Plan(steps=tuple(steps), output="onward")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of the join that decides which beginnings continue."""
        if step.role != "onward":
            return super().reader(step, brief)
        return OnResult(lambda result: self._read_clusters(result.value, brief))

    def _read_clusters(self, heads: JsonValue, brief: PlanningContext) -> Plan:
        if self.groups.name != "distinct" and isinstance(heads, list) and heads:
            heads = heads[0]  # of the one branch that `onward` collects
        return self.plan_rest(heads, brief)

    def plan_rest(self, heads: JsonValue, brief: PlanningContext) -> Plan:
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
                        place = "rest", int(trace.rpartition("-")[2])
                        left = self._whole - self._prefix_tokens
                        rest = self._part(brief, name, (), self.answer, place, left, f"for {count}", after=trace)
                        steps.append(rest)
                    names.append(name)
                    weights[name] = count
                case _:
                    raise PlannerError(f"{head!r} is no cluster: it needs `trace`, `count` and `done`")
        if not names:
            raise PlannerError("no beginning is left to continue")
        merge = Plugin(name="majority", options={"weights": weights})
        vote = Join(merge=merge, on_failure="best-effort", early=self.early)
        steps.append(Step(name="vote", op=vote, needs=tuple(names), label=f"majority of {len(names)} clusters"))
        if self._judges_by_score:
            steps.append(through("told", "vote", _NOT_CALIBRATED))
        return Plan(steps=tuple(steps), output=steps[-1].name)

    @property
    def _judges_by_score(self) -> bool:
        """Whether the judge gives numbers, and those from a mark on count as alike."""
        judge = self.groups.options.get("judge")
        return self.groups.options.get("ask") == "embedding" or (
            isinstance(judge, dict) and bool(judge.get("logprobs"))
        )

    @property
    def _whole(self) -> int:
        return max(2, self.answer.max_tokens or 0)

    @property
    def _prefix_tokens(self) -> int:
        return min(self.draft.max_tokens or 1, self._whole - 1)

    def _part(
        self,
        brief: PlanningContext,
        name: str,
        pieces: Sequence[Part],
        prompt: CallConfig,
        place: tuple[str, int],
        tokens: int,
        label: str,
        after: str | None = None,
    ) -> Step:
        seed = derive(brief.request.seed, *place) if prompt.temperature != 0 else None
        return call_model(
            brief, "deepprune", name, pieces, prompt, after=after, max_tokens=tokens, seed=seed, label=label
        )

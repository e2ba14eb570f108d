"""Planners with lines of thought side by side: `deepprune` (many beginnings, and one of each group with the same
expected answer continues) and `think-summarize` (one call writes the answer from the lines)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Access, Fidelity
from plait.core.errors import PlannerError, PluginError
from plait.core.flow import Answerable, Flow
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Join, Part, Plugin, Text
from plait.core.plan import Plan, Step
from plait.core.planning import CallOptions, call_model
from plait.core.result import Result
from plait.core.vocabulary import Deadline, Early, MaxInputTokens, N, OnePlugin, Quorum, StopOnVerified
from plait.planners._shared.drafts import (
    Draft,
    find_verified,
    format_histogram,
    read_drafts,
    render_block,
    render_drafts,
)
from plait.planners._shared.steps import Asker, derive, through

__all__ = ["DeepPrune", "ThinkSummarize"]


# Planner `deepprune`: many beginnings, and one of each group with the same expected answer continues.
#
# The merges `distinct` and `alike` group the beginnings; this file plans the steps before and after.


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
        description="A beginning, and its tokens; what it leaves open is as `answer` has it. Its template has "
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
        return _Clusters(self, brief)

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


class _Clusters:
    """Reads the clusters and plans the rest."""

    def __init__(self, planner: DeepPrune, brief: PlanningContext) -> None:
        self.planner, self.brief = planner, brief

    def feed(self, delta: str) -> Sequence[Plan]:
        return ()

    def close(self, result: Result) -> Plan:
        heads = result.value
        if self.planner.groups.name != "distinct" and isinstance(heads, list) and heads:
            heads = heads[0]  # of the one branch that `onward` collects
        return self.planner.plan_rest(heads, self.brief)


MOST_TAGGED = 8
"""Paths that ParaThinker's tokenizer has tags for."""

_SUMMARY = """\
{question}

Several attempts at this were made independently of one another. Some may be wrong, some were stopped before their end.

{drafts}
{histogram}Compare the attempts, keep what holds, correct what does not, and write one complete and final answer to \
the question. Do not mention the attempts.
"""


class ThinkSummarize(Flow):
    """Parallel thoughts and a synthesis, after ParaThinker (arXiv 2509.04475).

    Steps: `path-1` … `path-n` think about the request independently. When `quorum` of them are done (by default one:
    First-Finish, in the paper the most accurate and the cheapest) the others are stopped; their text so far is kept.
    `summary` reads all texts and writes the answer. If it fails, the finished paths vote. A path that the task's
    verifier finds right is the answer, and so is a path without any other beside it.

    Differs from the paper, whose model is trained to think in tagged paths and whose engine lets the summary attend to
    their caches: here a prompt asks any model for a synthesis of the paths' text (or the model writes in the dialect
    that it was trained in). Do not expect the paper's figures. The paths race: with a quorum below `n` a seed does not
    determine the answer, since the first paths to end are read, and the answer's `why` reports it. Tokens of
    stopped paths count as cancelled in the run's usage. Defaults: 4 paths, temperature 0.8, at most 4,096 tokens of
    paths read.
    """

    fidelity = Fidelity(
        "variant",
        "any model, by words; `dialect=parathinker` has the released tags",
        oracles=("tokens-parathinker",),
        paper="2509.04475",
    )

    answer_calls: ClassVar[tuple[str, ...]] = ("summary",)

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.8, stream=True),
        description="The paths. Their template has `{question}`. With `stream` the text of stopped ones is read too.",
    )
    summary: Annotated[CallConfig, Uses("question", "drafts", "histogram")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="The synthesis. Its template has `{question}`, `{drafts}`, and `{histogram}`, a count of their "
        "answers.",
    )
    n: N = 4
    quorum: Quorum = Field(default=1, ge=1)
    deadline: Deadline = None
    max_input_tokens: MaxInputTokens = Field(default=4096)
    dialect: Literal["words", "parathinker"] = Field(
        default="words",
        description="How the model writes what it wants done. `parathinker`, for a model that was trained as that "
        "one: path 1 begins with `<think1>` … and ends at `</think1>`, and the answer is the `<summary>` that follows "
        "all paths in the model's own turn. Its engine lets the summary attend to the paths' caches; here it reads "
        "their text again. Its tokenizer has tags for eight paths, so `n` is at most 8.",
    )
    stop_on_verified: StopOnVerified = True

    @model_validator(mode="after")
    def _paths_have_tags(self) -> ThinkSummarize:
        if self._tagged and self.n > MOST_TAGGED:
            raise PluginError(f"a model trained as ParaThinker has tags for {MOST_TAGGED} paths: give a smaller `n`")
        return self

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Return the synthesis of the paths, or the path that makes it needless."""
        asker = Asker("think_summarize", ctx.brief)
        may_stop = self.quorum is not None or self.deadline is not None or bool(self.stop_on_verified)
        partial = bool(self.draft.stream) and may_stop
        paths = {f"path-{i}": ctx.step(self._path(asker, i, partial)) for i in range(1, self.n + 1)}
        enough = None if self.quorum is None else min(self.quorum, self.n)
        read = await ctx.join(
            paths.values(),
            Plugin(
                name="synthesis-drafts",
                options={"enough": enough, "partial": partial, "stop_on_verified": self.stop_on_verified},
            ),
            on_failure="best-effort",
            early=True,
            deadline=self.deadline,
            name="paths",
            label="first to finish" if enough == 1 else f"{enough or 'all'} of {self.n}",
        )
        drafts = read_drafts(read.result)
        why = read.why if enough is None or enough >= self.n else f"{read.why}; the first to end were read (a race)"
        right = find_verified(drafts) if self.stop_on_verified else None
        if right is not None:
            return ctx.answer(paths[right.name], f"{right.name} is verified; {why}", name="answer")
        if len(drafts) == 1 and drafts[0].done:
            return ctx.answer(paths[drafts[0].name], f"nothing beside it to read; {why}", name="answer")
        summary = ctx.step(self._summary(asker, drafts))
        votes = [paths[draft.name] for draft in drafts if draft.done]  # if the synthesis fails
        merge = Plugin(name="synthesis-or-vote", options={"note": why})
        return ctx.join([summary, *votes], merge, on_failure="best-effort", early=True, name="answer")

    @property
    def _tagged(self) -> bool:
        return self.dialect == "parathinker"

    def _path(self, asker: Asker, number: int, partial: bool) -> Step:
        options: CallOptions = {"stream": partial, "label": f"path {number} of {self.n}"}
        if self._tagged:
            options["begin"], options["stop"] = f"<think{number}>", (f"</think{number}>",)
        return asker.step(
            f"path-{number}",
            self.draft.parts("{question}", question=asker.question),
            self.draft,
            **options,
        )

    def _summary(self, asker: Asker, drafts: list[Draft]) -> Step:
        """Return the synthesis: a call that reads all paths, or (tagged) the end of the turn in which they stand."""
        options: CallOptions = {"label": f"{'summary' if self._tagged else 'synthesis'} of {len(drafts)} paths"}
        if self._tagged:
            pieces = (Text(text=asker.question),)
            by_name = {f"path-{number}": number for number in range(1, self.n + 1)}
            numbers = [by_name[draft.name] for draft in drafts]
            texts = zip(numbers, render_drafts(drafts, self.max_input_tokens), strict=True)
            begin = "".join(f"<think{i}>{text}</think{i}>\n" for i, text in texts) + "<summary>"
            options["begin"], options["stop"] = begin, ("</summary>",)
        else:
            counted = format_histogram([draft for draft in drafts if draft.done])
            pieces = self.summary.parts(
                _SUMMARY,
                question=asker.question,
                drafts=render_block(drafts, self.max_input_tokens, "Attempt"),
                histogram=f"{counted}\n\n" if counted else "",
            )
        return asker.step(
            "summary",
            pieces,
            self.summary,
            **options,
        )

"""Planner `refine`: write rounds of drafts, where each draft reads a short digest of the round before."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import BranchCount, Fidelity
from plait.core.errors import PlannerError
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.lengths import semantic_entropy
from plait.core.ops import Join, Part, Plugin, Ref
from plait.core.plan import Plan, Step
from plait.core.result import Result
from plait.core.vocabulary import Count, MergeOption, StopOnVerified

from ..._shared.drafts import Draft, find_verified, format_histogram, rank_drafts, read_drafts, render_block
from ..._shared.steps import Asker, OnResult, derive, strip_reasoning, through

__all__ = ["Refine"]


REFINE = """\
{question}

Earlier attempts at this left the following notes. They may be incomplete or wrong, and the most frequent answer need \
not be right.

<notes>
{histogram}{workspace}
</notes>

Check what the notes claim, use what holds, repair or replace what does not, and write a complete answer of your own \
to the question.
"""
DISTIL = """\
{question}

Below are {count} independent attempts at this.

{drafts}"""
DISTIL_END = """
{histogram}Condense the attempts into notes for somebody who will answer the question after you and sees nothing else \
of them. Say on what they agree, where they contradict one another and which side the arithmetic or the argument \
supports, which intermediate results are established, which mistakes to avoid, and what has not been tried. Keep the \
answer of a minority if it could be right. At most {tokens} tokens; no final answer of your own.
"""
CHOOSE_END = """
{histogram}Which {k} of the attempts are the most useful to somebody who will answer the question after you: correct, \
or closest to it, and not all the same? Reply with their numbers, best first, separated by commas, and nothing else.
"""
MAX_INPUT_TOKENS = 8192
"""Maximum number of tokens of all drafts in the prompt of the notes."""
_NUMBERS = re.compile(r"(?<![\w.])(\d{1,4})(?![\w]|\.\d)")


def read_choice(text: str, count: int, k: int) -> list[int]:
    """Return up to `k` distinct numbers from a model's reply, shifted to start at 0. Numbers outside 1 to `count` are
    ignored. In a reply of several lines the last line with numbers counts."""
    lines = [line for line in strip_reasoning(text[:20_000]).splitlines() if _NUMBERS.search(line)]
    if not lines:
        return []
    numbers = [int(number[1]) - 1 for number in _NUMBERS.finditer(lines[-1])]
    return list(dict.fromkeys(number for number in numbers if 0 <= number < count))[:k]


def _as_rounds(value: object) -> object:
    """Return the drafts of each round: a number n means n rounds of one draft, and `8x4x1` three rounds."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value > 1000:
            raise ValueError(f"{value:,} rounds are too many: 1,000 are the most")
        return (1,) * value
    if isinstance(value, str):
        return tuple(part.strip() for part in value.replace(",", "x").split("x"))
    return value


class Refine(Planner):
    """Parallel-Distill-Refine (arXiv 2510.01123). With one draft a round it is Sequential Refinement.

    Steps: `draft-r-1` … `draft-r-M` are the drafts of round r. `round-r` gathers them and expands into the workspace of
    the next round (`distill-r` with the distiller `summary`, `choose-r` where a model selects) and the next drafts. The
    workspace has at most the tokens of `summary` and is rebuilt each round. The last round has one draft, the answer;
    if this draft fails, the round before votes. A verified draft ends the run.

    Differs from the paper: the workspace begins with the count of the drafts' answers, since a summary can lose a
    minority's answer; failed drafts are left out; the best drafts replace a failed distiller. The paper does not define
    the selection of the top k; here verifier, votes and log-probability select them, or a model call
    (`criterion=model`). Default: rounds (8, 4, 1), temperature 1, a summary of 1,024 tokens.
    """

    fidelity = Fidelity("variant", "the workspace has the count of answers", paper="2510.01123")

    answer_calls: ClassVar[tuple[str, ...]] = ("draft",)

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=1024, temperature=1.0),
        description="A draft of the first round. Its template has `{question}`. At temperature 0 those of a round "
        "are all the same; with `logprobs` drafts with equally frequent answers are ranked by them.",
    )
    turn: Annotated[CallConfig, Uses("question", "histogram", "workspace")] = Field(
        default=CallConfig(),
        description="A draft that reads `{workspace}` and `{histogram}`, the count of the answers before. Unset "
        "fields have the values of `draft`.",
    )
    summary: Annotated[CallConfig, Uses("question", "count", "drafts", "histogram", "tokens")] = Field(
        default=CallConfig(max_tokens=1024),
        description="The notes on a round's `{drafts}`. `max_tokens` are those of any workspace (the paper's "
        "kappa), without the line that counts answers.",
    )
    judge: Annotated[CallConfig, Uses("question", "count", "drafts", "histogram", "k")] = Field(
        default=CallConfig(thinking="off", max_tokens=64),
        description='The choice of the k best drafts, with `criterion="model"`.',
    )
    rounds: Annotated[tuple[int, ...], BeforeValidator(_as_rounds), BranchCount()] = Field(
        default=(8, 4, 1),
        description="Maximum number of rounds. Each reads the results of the one before: the drafts of each, as "
        "`[8,4,1]` or `8x4x1`. A single number is a number of rounds with one draft each: sequential refinement.",
    )
    distiller: Literal["summary", "shared-top-k", "per-sample-top-k", "random-k"] = Field(
        default="summary",
        description="Content of the workspace. `summary`: a model's notes on all drafts. `shared-top-k`: the k best "
        "drafts. `per-sample-top-k`: for the i-th draft of the next round the i-th best draft and the k - 1 best "
        'others; with `criterion="model"` the k drafts of a choice of its own. `random-k`: k random drafts for each.',
    )
    max_prompt_items: Count = Field(
        default=3,
        ge=1,
        description="Maximum number of items in one prompt, the nearest or best first: the k of the distillers that "
        "take drafts as they are.",
    )
    criterion: Literal["votes", "model"] = Field(
        default="votes",
        description="Criterion for the top k: verifier, frequency of the answer and log-probability, or a "
        "call of the model.",
    )
    merge: MergeOption = Plugin(name="majority")
    threshold: float | None = Field(
        default=None,
        ge=0.0,
        description="Threshold of a score: a round whose answers have at most this semantic "
        "entropy, in nats, is the last, and its vote the answer. With `rounds=8x8x8`, `distiller=shared-top-k` and "
        "`max_prompt_items=8` these are the rounds of SEAT (arXiv 2507.06829), which read one another.",
    )
    stop_on_verified: StopOnVerified = True

    @field_validator("rounds")
    @classmethod
    def _some(cls, rounds: tuple[int, ...]) -> tuple[int, ...]:
        if not rounds or min(rounds) < 1:
            raise ValueError("a round needs at least one draft: write [8,4,1], or [1,1,1] for sequential refinement")
        return rounds

    def size(self) -> int:
        """Return the number of drafts in the largest round or, if greater, in all workspaces of that round."""
        most = max(self.rounds)
        return most * (min(self.max_prompt_items, most) if self.distiller in ("per-sample-top-k", "random-k") else 1)

    def start(self, brief: PlanningContext) -> Plan:
        """Return the first round."""
        asker = Asker("refine", brief)
        prompts = [self.draft.parts("{question}", question=asker.question)] * self.rounds[0]
        return self._round(asker, 1, prompts, (), ())

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return the reader of a round's drafts, or of a model's choice among them."""
        asker = Asker("refine", brief)
        match step.role, step.state:
            case "round", {"round": int(round), "names": list(names)}:
                return OnResult(lambda result: self._after_drafts(asker, round, result, tuple(map(str, names))))
            case "chosen", {"round": int(round), "names": list(names)}:
                return OnResult(lambda result: self._after_judges(asker, round, result, tuple(map(str, names))))
            case _:
                return super().reader(step, brief)

    def _after_drafts(self, asker: Asker, round: int, result: Result, before: tuple[str, ...]) -> Plan:
        """Return the plan after a round's drafts: the answer, a judge, or the next round. `before`: the drafts of the
        round before."""
        drafts = read_drafts(result)
        if not drafts:  # all drafts of this round failed: the round before decides
            op = Join(merge=self.merge, on_failure="best-effort")
            label = f"round {round} failed: {result.why}"
            answer = Step(name="answer", op=op, needs=before, label=label)
            return Plan(steps=(answer,), output="answer")
        right = find_verified(drafts) if self.stop_on_verified else None
        if right is not None:
            note = f"{right.name} is verified, in round {round} of {len(self.rounds)}; {result.why}"
            return Plan(steps=(through("answer", right.name, note),), output="answer")
        votes = Counter(draft.key for draft in drafts if draft.key is not None)
        if self.threshold is not None and votes and sum(votes.values()) > 1:
            entropy = semantic_entropy(list(votes.values()))
            if entropy <= self.threshold:
                label = f"round {round} has semantic entropy {entropy:.3g}"
                op = Join(merge=self.merge, on_failure="best-effort")
                answer = Step(name="answer", op=op, needs=tuple(draft.name for draft in drafts), label=label)
                return Plan(steps=(answer,), output="answer")
        selects = self.distiller in ("shared-top-k", "per-sample-top-k") and len(drafts) > self.max_prompt_items
        if self.criterion == "model" and selects:
            return self._plan_judges(asker, round, drafts)
        return self.next_round(asker, round, drafts, None)

    def _plan_judges(self, asker: Asker, round: int, drafts: list[Draft]) -> Plan:
        """Return the calls that choose drafts, and the join that reads them."""
        many = self.rounds[round] if self.distiller == "per-sample-top-k" else 1
        # Several choices must differ; a single choice is the model's best.
        judge = self.judge.over(CallConfig(temperature=self.draft.temperature if many > 1 else 0.0))
        steps = [
            asker.step(
                f"choose-{round}-{i}" if many > 1 else f"choose-{round}",
                self._digest(asker, drafts, self.judge, CHOOSE_END, k=str(self.max_prompt_items)),
                judge,
                label=f"choose {self.max_prompt_items} of {len(drafts)}",
            )
            for i in range(1, many + 1)
        ]
        names = tuple(step.name for step in steps)
        merge = Plugin(name="synthesis-drafts")
        needs = (*names, *(draft.name for draft in drafts))
        chosen = Step(
            name=f"chosen-{round}",
            op=Join(merge=merge, on_failure="any-end"),
            needs=needs,
            expands=True,
            role="chosen",
            state={"round": round, "names": [*names]},
            label=f"the {self.max_prompt_items} best",
        )
        return Plan(steps=(*steps, chosen), output=chosen.name)

    def _after_judges(self, asker: Asker, round: int, result: Result, judges: tuple[str, ...]) -> Plan:
        texts = {draft.name: draft.text for draft in read_drafts(result)}
        drafts = [draft for draft in read_drafts(result) if draft.name not in judges]
        if not drafts:
            raise PlannerError(f"no draft of round {round} is left")
        picks = [read_choice(texts.get(judge, ""), len(drafts), self.max_prompt_items) for judge in judges]
        return self.next_round(asker, round, drafts, picks)

    def next_round(self, asker: Asker, round: int, drafts: list[Draft], picks: list[list[int]] | None = None) -> Plan:
        """Return the round after `round`, with its workspace. `picks`: drafts that judges chose."""
        many = self.rounds[round]
        counted = format_histogram(drafts) if len(drafts) > 1 else ""
        turn = self._prompt(round + 1)
        fields = {"question": asker.question, "histogram": f"{counted}\n\n" if counted else ""}
        if self.distiller == "summary" and len(drafts) > 1:
            distill = asker.step(
                f"distill-{round}",
                self._digest(asker, drafts, self.summary, DISTIL_END, tokens=str(self._workspace)),
                self.summary,
                label=f"notes on {len(drafts)} drafts",
            )
            best = render_block(
                rank_drafts(drafts)[: self.max_prompt_items], self._workspace
            )  # replaces a failed distiller
            entries: list[JsonValue] = [{"branch": distill.name, "missing": best}]
            notes = Step(
                name=f"notes-{round}",
                op=Join(merge=Plugin(name="stitch", options={"parts": entries}), on_failure="any-end"),
                needs=(distill.name,),
                label="workspace",
            )
            prompts = [turn.parts(REFINE, **fields, workspace=(Ref(step=notes.name),))] * many
            return self._round(asker, round + 1, prompts, drafts, (distill, notes))
        blocks = [render_block(chosen, self._workspace) for chosen in self._select_drafts(asker, round, drafts, picks)]
        prompts = [turn.parts(REFINE, **fields, workspace=text) for text in blocks]
        return self._round(asker, round + 1, prompts, drafts, ())

    def _select_drafts(
        self, asker: Asker, round: int, drafts: list[Draft], picks: list[list[int]] | None
    ) -> list[list[Draft]]:
        """Return for each draft of the next round the drafts that it reads."""
        many, best = self.rounds[round], rank_drafts(drafts)
        if picks is not None:
            chosen = [[drafts[at] for at in pick] or best[: self.max_prompt_items] for pick in picks]
            return [chosen[i % len(chosen)] for i in range(many)]
        match self.distiller:
            case "per-sample-top-k":
                own = [best[i % len(best)] for i in range(many)]
                more = self.max_prompt_items - 1
                return [[draft, *islice((other for other in best if other is not draft), more)] for draft in own]
            case "random-k":
                seeds = [derive(asker.brief.request.seed, "refine", "pick", round, i) for i in range(many)]
                return [Random(seed).sample(drafts, min(self.max_prompt_items, len(drafts))) for seed in seeds]
            case _:
                return [best[: self.max_prompt_items]] * many

    @property
    def _workspace(self) -> int:
        return self.summary.max_tokens or 1024

    def _prompt(self, round: int) -> CallConfig:
        """Return the call configuration of a round's drafts."""
        if round == 1 and len(self.rounds) > 1:
            return self.draft
        return self.turn.over(self.draft).model_copy(update={"template": self.turn.template})

    def _digest(self, asker: Asker, drafts: list[Draft], prompt: CallConfig, end: str, **more: str) -> tuple[Part, ...]:
        """Return the prompt of a call that reads all drafts."""
        counted = format_histogram(drafts)
        return prompt.parts(
            DISTIL + end,
            question=asker.question,
            count=str(len(drafts)),
            drafts=render_block(drafts, MAX_INPUT_TOKENS, "Attempt"),
            histogram=f"{counted}\n\n" if counted else "",
            **more,
        )

    def _round(
        self,
        asker: Asker,
        round: int,
        prompts: list[tuple[Part, ...]],
        before: list[Draft] | tuple[()],
        made_of: tuple[Step, ...],
    ) -> Plan:
        """Return a round's drafts and the join that gathers them or builds the answer."""
        last = round == len(self.rounds)
        names = tuple(f"draft-{round}-{i}" for i in range(1, len(prompts) + 1))
        steps = [
            asker.step(
                name,
                prompt,
                self._prompt(round),
                label=f"draft {i} of {len(names)}, round {round} of {len(self.rounds)}",
            )
            for i, (name, prompt) in enumerate(zip(names, prompts, strict=True), 1)
        ]
        if not last:
            options: dict[str, JsonValue] = {"stop_on_verified": self.stop_on_verified}
            merge = Plugin(name="synthesis-drafts", options=options)
            on_failure = "best-effort" if round == 1 else "any-end"
            op = Join(merge=merge, on_failure=on_failure, early=self.stop_on_verified)
            join = Step(
                name=f"round-{round}",
                op=op,
                needs=names,
                expands=True,
                label=f"{len(names)} drafts",
                role="round",
                state={"round": round, "names": [draft.name for draft in before]},
            )
        elif len(names) > 1:
            op = Join(merge=self.merge, on_failure="best-effort")
            join = Step(name="answer", op=op, needs=names, label=f"{self.merge.name} of {len(names)}")
        else:
            merge = Plugin(name="synthesis-or-vote", options={"note": f"round {round} of {len(self.rounds)}"})
            needs = (*names, *(draft.name for draft in before))
            op = Join(merge=merge, on_failure="best-effort", early=True)
            join = Step(name="answer", op=op, needs=needs, label=f"round {round}")
        return Plan(steps=(*made_of, *steps, join), output=join.name)

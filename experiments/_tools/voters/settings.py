"""The ways to vote that the study `erring-votes` compares, each with the settings that may be chosen for it."""

from __future__ import annotations

from typing import NamedTuple

from .sums import SAMPLES, TOKENS, WINDOW

__all__ = ["BY_CONFIDENCE", "FULL", "RULES", "SURE", "WAVES", "Rule", "Setting"]

BY_CONFIDENCE = ("cges", "confident", "deepconf")
"""Rules that read how sure the model was."""
WAVES = 4
"""Branches in flight, for the rules that stop a vote."""
SURE = f"answer.logprobs=20,answer.window={WINDOW}"
"""What prunings by confidence ask of the planner."""


class Setting(NamedTuple):
    """A rule with its options."""

    merge: str = "majority"
    policies: tuple[str, ...] = ()
    early: bool = False
    allocate: str = ""
    planner: str = ""
    """Another planner than `sample` and `adaptive`, with its options; or more options of `sample`."""

    @property
    def stops(self) -> bool:
        """Whether it may save tokens."""
        return bool(self.early or self.policies or self.allocate or self.planner)


class Rule(NamedTuple):
    """A way to vote."""

    label: str
    default: Setting
    """With the options that it has by default, as far as they fit samples of a dozen tokens."""
    others: tuple[Setting, ...] = ()

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All of them, the default first."""
        return (self.default, *self.others)


def _merge(label: str, default: str, *others: str) -> Rule:
    return Rule(label, Setting(default), tuple(map(Setting, others)))


def _stop(label: str, default: str, *others: str, width: int = WAVES, merge: str = "majority") -> Rule:
    made = [Setting(merge, policies=(each, f"waves:n={width}")) for each in (default, *others)]
    return Rule(label, made[0], tuple(made[1:]))


def _planner(label: str, *planners: str) -> Rule:
    return Rule(label, Setting(planner=planners[0]), tuple(Setting(planner=each) for each in planners[1:]))


def _online(warmup: int, eta: int, wait: bool = True) -> Setting:
    """DeepConf's combination: a pruning, a consensus, weights."""
    policies = (
        f"deepconf:eta={eta},warmup={warmup},hold={str(wait).lower()}",
        f"deepconf-consensus:min_votes={warmup}",
    )
    return Setting(f"weighted:criterion=lowest,eta={eta},warmup={warmup}", policies, planner=f"sample:{SURE}")


def _posterior(width: int) -> Rule:
    own = "cges:lead=false,min_votes=1"
    options = [f"{own},vote_temperature={t},confidence={p}" for t in (1, 0.33) for p in (0.99, 0.95, 0.9, 0.8)]
    label = f"CGES with its own choice (`posterior`), {'one at a time' if width == 1 else f'{width} in flight'}"
    return _stop(label, "cges:lead=false", *options, width=width, merge="posterior")


_WHOLE = f"answer.max_tokens={TOKENS},probe.max_tokens=1,probe.template=<hit>"
FULL = Rule("majority, all samples", Setting())
RULES: tuple[Rule, ...] = (
    FULL,
    Rule("majority, lossless stop", Setting(early=True, policies=(f"waves:n={WAVES}",))),
    _merge("weighted by confidence", "weighted", "weighted:criterion=mean", "weighted:criterion=bottom",
    "weighted:criterion=lowest"),
    _merge("DeepConf offline (kept share)", "weighted:eta=90", "weighted:eta=50", "weighted:eta=10"),
    _merge("inverse entropy", "inverse-entropy"),
    _merge("shortest majority", "shortest-majority"),
    _merge("posterior (CGES without its stop)", "posterior", "posterior:vote_temperature=0.33"),
    _merge("best single sample, by log-probability", "best-scored"),
    _stop("Adaptive-Consistency", "adaptive-consistency", "adaptive-consistency:confidence=0.8",
          "adaptive-consistency:confidence=0.9", "adaptive-consistency:confidence=0.99"),
    _stop("ESC", "esc", "esc:window=3", "esc:window=4", width=5),
    _stop("ESC, windows of 8", "esc:window=8", width=8),
    _stop("SPRT (ConSol)", "sprt", "sprt:share=0.7", "sprt:share=0.8", "sprt:share=0.5001,beta=0.949976"),
    _stop("CGES", "cges", "cges:vote_temperature=1,confidence=0.95", "cges:vote_temperature=0.5,confidence=0.95",
          "cges:vote_temperature=0.5"),
    _posterior(WAVES),
    _posterior(1),
    _stop("one sure vote", "confident", "confident:votes=2", "confident:threshold=-0.05,votes=2",
          "confident:threshold=-0.05", "confident:threshold=-0.1"),
    _stop("one sure vote, one at a time, and `posterior`", "confident", "confident:threshold=-0.05",
          "confident:threshold=-0.1", "confident:threshold=-0.15", width=1, merge="posterior"),
    _stop("semantic entropy", "semantic-entropy", "semantic-entropy:entropy=0.2", "semantic-entropy:min_votes=8"),
    _stop("SEAT without a threshold, windows of 8", "semantic-entropy:rule=secretary", width=8),
    _planner("SEAT's rounds of 8 (`refine`), by threshold",
             *(f"refine:rounds=8x8x8x8,distiller=shared-top-k,max_prompt_items=8,stop_on_verified=false,threshold={h}"
               for h in (0.4, 0.8, 1.6))),
    Rule("DeepConf consensus", Setting("majority", ("deepconf-consensus", "waves:n=8")),
         (Setting("weighted:criterion=lowest", ("deepconf-consensus", "waves:n=8")),)),
    Rule("DeepConf online", _online(16, 10), tuple(_online(*each) for each in ((16, 90), (8, 10), (8, 50), (8, 90)))),
    _planner("DeepPrune (probes)", f"deepprune:n={SAMPLES},draft.max_tokens=6,{_WHOLE}",
             *(f"deepprune:n={SAMPLES},draft.max_tokens={tokens},{_WHOLE}" for tokens in (12, 24))),
    Rule("DeepPrune while written (`redundant`)",
         Setting(policies=("redundant:steps=3,tokens=64",), planner="sample:answer.stream=true"),
         tuple(Setting(policies=(f"redundant:steps={k},tokens=64,threshold=1",), planner="sample:answer.stream=true")
               for k in (2, 4))),
    _planner("MARS", f"mars:n={SAMPLES},draft.max_tokens=6,{_WHOLE}",
             *(f"mars:n={SAMPLES},draft.max_tokens={tokens},warmup={warm},{_WHOLE}"
               for tokens, warm in ((12, 16), (12, 8)))),
    Rule("allocation after 4 probes (`adaptive`)", Setting(allocate="by-saturation:confidence=0.95")),
)  # fmt: skip

"""The ways to vote that the study `votes` compares. Decides which; knows neither their formulas nor their outcomes."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

__all__ = [
    "CERTAINTY",
    "GRID",
    "MERGES",
    "REPLAYED",
    "RULES",
    "SAMPLES",
    "SIZES",
    "TOKENS",
    "Rule",
    "combination",
    "in_flight",
]

SAMPLES = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)
TOKENS = 512
"""Most tokens of a sample."""


class Rule(NamedTuple):
    """A way to vote: how answers are merged, when enough is enough, what is pruned."""

    key: str
    label: str
    merge: str = "majority"
    early: bool = False
    policies: tuple[str, ...] = ()
    live: int = 0
    """On how many problems it is run on the engine as well."""
    replayed: bool = True
    """Whether recorded samples tell what it needs: prunings look at branches while these are written, and other
    temperatures have other samples."""
    allocate: str = ""
    """The allocation, for the planner `adaptive`; the planner `sample` by default."""
    tokens: int = TOKENS
    """Most tokens of a branch."""
    chosen: bool = False
    """Whether its settings were chosen on recorded samples, so that figures on these flatter it."""


def _stop(key: str, label: str, *policies: str, live: int = 0) -> Rule:
    return Rule(key, label, policies=policies, live=live)


def combination(width: int, sure: float, floor: float | None, futility: bool) -> Rule:
    """Return the stop rules that make the best combination: one vote that the model was sure of, else votes that
    agree, else giving up; with `width` branches in flight."""
    policies = [f"adaptive-consistency:confidence={sure:g}", f"waves:n={width}"]
    policies += [f"confident:threshold={floor:g}"] if floor is not None else []
    policies += ["futility"] if futility else []
    label = "one sure vote, or " if floor is not None else ""
    label += f"agreement ({sure:g})" + (", or futility" if futility else "")
    key = f"grid-{width}-{sure:g}-{'none' if floor is None else f'{floor:g}'}-{int(futility)}"
    return Rule(key, f"{label}, {in_flight(width)}", policies=tuple(policies), chosen=True)


def in_flight(width: int) -> str:
    """Say how many branches run at a time."""
    return "one at a time" if width == 1 else f"waves of {width}"


WIDTHS = (1, 2, 4, 8)
SURE = (0.8, 0.93)
FLOORS = (-0.01, -0.015, -0.02)
GRID = {width: tuple(combination(width, *each) for each in product(SURE, FLOORS, (False, True))) for width in WIDTHS}
"""What the best combination is chosen from, by the branches in flight."""

RULES: tuple[Rule, ...] = (
    Rule("majority", "majority, all samples"),
    Rule("lossless", "majority, lossless stop", early=True),
    Rule("lossless-waves", "majority, lossless stop, waves of 8", early=True, policies=("waves:n=8",)),
    Rule("short", "majority, branches of 256 tokens at most", tokens=256),
    Rule("mean", "weighted by mean confidence", "weighted:criterion=mean"),
    Rule("tail", "weighted by tail confidence", "weighted:criterion=tail"),
    Rule("bottom", "weighted by bottom-10 % confidence", "weighted:criterion=bottom"),
    Rule("lowest", "weighted by lowest group", "weighted:criterion=lowest"),
    Rule("tail-90", "tail confidence, best 90 % kept", "weighted:criterion=tail,eta=90"),
    Rule("tail-10", "tail confidence, best 10 % kept", "weighted:criterion=tail,eta=10"),
    Rule("entropy", "inverse entropy", "inverse-entropy"),
    Rule("shortest", "shortest majority", "shortest-majority"),
    Rule("best", "best single sample, by log-probability", "best-scored"),
    _stop("ac", "Adaptive-Consistency, all at once", "adaptive-consistency"),
    _stop("ac-waves", "Adaptive-Consistency, waves of 4", "adaptive-consistency", "waves:n=4", live=100),
    _stop("ac-serial", "Adaptive-Consistency, one at a time", "adaptive-consistency", "waves:n=1"),
    _stop("ac-two", "Adaptive-Consistency at 0.8 (two votes), waves of 4", "adaptive-consistency:confidence=0.8",
          "waves:n=4"),
    _stop("esc", "ESC, windows of 5", "esc:window=5", "waves:n=5"),
    _stop("esc-8", "ESC, windows of 8", "esc:window=8", "waves:n=8"),
    _stop("entropy-stop", "semantic entropy, waves of 8", "semantic-entropy", "waves:n=8"),
    _stop("secretary", "semantic entropy without a threshold, windows of 8", "semantic-entropy:rule=secretary",
          "waves:n=8"),
    _stop("saturation", "saturation (TTSPM), waves of 4", "saturation", "waves:n=4"),
    Rule("deepconf-consensus", "DeepConf consensus, waves of 8", "weighted:criterion=lowest",
         policies=("deepconf-consensus", "waves:n=8")),
    _stop("first", "First-Finish, all at once", "first-finish"),
    _stop("first-waves", "First-Finish, waves of 4", "first-finish", "waves:n=4"),
    _stop("first-two", "First-Finish of two votes, waves of 4", "first-finish:votes=2", "waves:n=4"),
    _stop("confident", "one sure vote (floor -0.015), waves of 4", "confident:threshold=-0.015", "waves:n=4"),
    _stop("futility", "lossless stop, or futility, waves of 4", "consensus", "futility", "waves:n=4"),
    Rule("allocation", "allocation N*, 3 probes", allocate="by-saturation:evidence=share", live=100),
    combination(4, 0.8, -0.02, True)._replace(key="best-waves", live=200),
    combination(1, 0.8, -0.015, True)._replace(key="best-serial"),
    Rule("deepconf", "DeepConf-low online", "weighted:criterion=lowest,eta=10,warmup=16", policies=("deepconf",),
    live=100,
         replayed=False),
    Rule("deepconf-high", "DeepConf-high online", "weighted:criterion=lowest,eta=90,warmup=16",
    policies=("deepconf:eta=90",),
         live=100, replayed=False),
    Rule("redundant", "redundancy, equal first steps", policies=("redundant:steps=3,threshold=0.9",), live=100,
         replayed=False),
    Rule("temperatures", "allocation N*, temperatures 0.7, 1 and 1.3",
         allocate='by-saturation:evidence=share,temperatures=[0.7,1.0,1.3]', live=100, replayed=False),
    Rule("verifier", "first right (verifier)", "best-of", early=True, live=100),
)  # fmt: skip
REPLAYED = tuple(rule for rule in RULES if rule.replayed)
MERGES = tuple(
    rule for rule in REPLAYED if not rule.early and not rule.policies and not rule.allocate and rule.tokens == TOKENS
)
"""What takes all samples and differs in how they are merged."""
CERTAINTY = Rule("certainty", "self-certainty (Borda)", "self-certainty")
"""Needs the whole vocabulary's log-probabilities."""

"""Records in the forms that other trainers take. None of those libraries is needed here: a form is plain lists, and
`verl_output` makes an object of the class that it is given.

A trainer that knows no forks takes each sequence by itself: what it read before its own first token is its prompt, a
parent's tokens included, so nothing is trained on twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, Protocol, TypeVar

from .record import BadRecord, Record

__all__ = ["Tokenizer", "grpo_advantages", "retokenised", "trl_output", "verl_fields", "verl_output"]

T = TypeVar("T")


class Tokenizer(Protocol):
    """What is asked of a tokenizer; those of Hugging Face have it."""

    def encode(self, text: str, /, **options: Any) -> Any:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], /, **options: Any) -> str:
        """Return the text of token ids."""
        ...


def retokenised(tokenizer: Tokenizer) -> Callable[[Record], str]:
    """Return a check of records (`Reader(check=…)`) that refuses one whose tokens, turned into text and back, are
    others: a trainer that is given its text would train on tokens that the model never wrote."""

    def check(record: Record) -> str:
        text = tokenizer.decode(list(record.tokens), skip_special_tokens=False)
        again = tokenizer.encode(text, add_special_tokens=False)
        ids = list(getattr(again, "ids", again))
        return "" if ids == list(record.tokens) else "it does not re-tokenise to itself"

    return check


def _parts(record: Record) -> tuple[int, int]:
    """Return where the model's first token is, and the end behind its last one: what follows needs no training."""
    if not record.generated:
        raise BadRecord(f"sequence {record.index} of {record.rollout}: the model generated nothing in it")
    return record.mask.index(1), len(record.mask) - record.mask[::-1].index(1)


def grpo_advantages(records: Iterable[Record], epsilon: float = 1e-6) -> dict[str, float]:
    """Return GRPO's advantage (arXiv 2402.03300) of each judged rollout: its reward less the mean of its group, divided
    by the group's standard deviation plus `epsilon` (verl has 1e-6, TRL 1e-4).

    A rollout counts once, however many sequences it has: a trainer that groups sequences gives a rollout of many
    threads more weight in the mean, and so other advantages. A rollout that is alone in its group keeps its reward.
    """
    rewards = {
        record.rollout: (record.group, record.reward)
        for record in records
        if record.judged and record.reward is not None
    }
    groups: dict[str, list[float]] = {}
    for group, reward in rewards.values():
        groups.setdefault(group, []).append(reward)
    out: dict[str, float] = {}
    for rollout, (group, reward) in rewards.items():
        of = groups[group]
        mean, spread = (fmean(of), stdev(of) + epsilon) if len(of) > 1 else (0.0, 1.0 + epsilon)
        out[rollout] = (reward - mean) / spread
    return out


def verl_fields(record: Record, advantage: float | None = None) -> dict[str, Any]:
    """Return the fields of verl's `AgentLoopOutput` but `metrics`. Raises `BadRecord` for a record without a generated
    token. Group, parent, fork and policy versions stand in `extra_fields`, and `advantage` (of `grpo_advantages`) if it
    is given; the oldest and the newest of these under the names that verl's asynchronous trainer reads."""
    start, end = _parts(record)
    versions = record.versions
    extra: dict[str, Any] = {
        "uid": record.group,
        "rollout": record.rollout,
        "sequence": record.index,
        "parent": record.parent,
        "fork": record.fork,
        "policies": [[segment.start, segment.end, segment.policy] for segment in record.segments],
        "min_global_steps": versions[0],
        "max_global_steps": versions[-1],
    }
    if advantage is not None:
        extra["advantage"] = advantage
    fields: dict[str, Any] = {
        "prompt_ids": list(record.tokens[:start]),
        "response_ids": list(record.tokens[start:end]),
        "response_mask": list(record.mask[start:end]),
        "num_turns": len(record.segments) + 1,
        "extra_fields": extra,
    }
    if record.logprobs:
        fields["response_logprobs"] = list(record.logprobs[start:end])
    if record.judged:
        fields["reward_score"] = record.reward
    return fields


def verl_output(record: Record, output: Callable[..., T], metrics: Callable[[], Any]) -> T:
    """Return a record as verl's `AgentLoopOutput`; give that class and `AgentLoopMetrics`.

    An agent loop of verl's returns one output a prompt: return the one of sequence 0. Given all sequences as samples
    with the same `uid`, verl would take the group's mean over sequences: take `grpo_advantages` in its place.
    """
    return output(metrics=metrics(), **verl_fields(record))


def trl_output(records: Iterable[Record]) -> dict[str, list[Any]]:
    """Return records as what a `rollout_func` of TRL's `GRPOTrainer` returns: `prompt_ids`, `completion_ids`,
    `logprobs`, `env_mask` (0 for what the model did not write), and `reward`, which TRL hands on to reward functions.

    Raises `BadRecord` for records without log-probabilities.
    """
    out: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "group")
    }
    for record in records:
        start, end = _parts(record)
        if not record.logprobs:
            raise BadRecord(f"sequence {record.index} of {record.rollout} has no log-probabilities, which TRL needs")
        out["prompt_ids"].append(list(record.tokens[:start]))
        out["completion_ids"].append(list(record.tokens[start:end]))
        out["logprobs"].append(list(record.logprobs[start:end]))
        out["env_mask"].append(list(record.mask[start:end]))
        out["reward"].append(record.reward)
        out["group"].append(record.group)
    return out

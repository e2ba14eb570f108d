"""Convert records to the formats of other trainers without their libraries, as plain lists.

A trainer without forks takes each sequence separately. Everything before the sequence's own first token is its prompt,
including a parent's tokens, so no token is trained on twice. Records that such a trainer would misread are rejected:
rollouts of several sequences without advantages (`weighed`), as it would treat each sequence as a rollout; records
drawn at another temperature than the trainer's; records drawn from a part of the vocabulary unknown to the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol

from .record import BadRecord, Record

_VERL_EPSILON = 1e-6


class Tokenizer(Protocol):
    """The required interface of a tokenizer, which Hugging Face tokenizers have."""

    def encode(self, text: str, /, **options: Any) -> Any:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], /, **options: Any) -> str:
        """Return the text of token ids."""
        ...


def retokenised(tokenizer: Tokenizer) -> Callable[[Record], str]:
    """Return a check of records (`Reader(check=…)`) that rejects a record whose tokens change when they are decoded and
    encoded again: a trainer on its text would train on tokens that the model never wrote."""

    def check(record: Record) -> str:
        text = tokenizer.decode(list(record.tokens), skip_special_tokens=False)
        again = tokenizer.encode(text, add_special_tokens=False)
        ids = list(getattr(again, "ids", again))
        return "" if ids == list(record.tokens) else "it does not re-tokenise to itself"

    return check


def _parts(record: Record) -> tuple[int, int]:
    """Return the positions of the model's first token and after its last token; later tokens need no training."""
    if not record.generated:
        raise BadRecord(f"sequence {record.index} of {record.rollout}: the model generated nothing in it")
    return record.mask.index(1), len(record.mask) - record.mask[::-1].index(1)


def _sampled(record: Record, temperature: float, narrowed: bool) -> None:
    """Reject a record whose log-probabilities the trainer cannot recompute, since it uses its own temperature and the
    whole vocabulary. Raises `BadRecord`."""
    where = f"sequence {record.index} of {record.rollout}"
    for segment in record.segments:
        if segment.temperature != temperature:
            at = "an unknown temperature" if segment.temperature is None else f"temperature {segment.temperature:g}"
            raise BadRecord(
                f"{where} was drawn at {at}, and the trainer has {temperature:g}: its ratios would be wrong. Give both "
                "the same temperature"
            )
        limits = [*(["top_p"] if segment.top_p < 1 else []), *([segment.form] if segment.form else []), *segment.others]
        if limits and not narrowed:
            raise BadRecord(
                f"{where} was drawn with {', '.join(limits)}, and a trainer computes its ratios over the whole "
                "vocabulary: draw without, or say narrowed=True to train all the same"
            )


def _credit(record: Record) -> float:
    """Return the single advantage of a sequence. Raises `BadRecord` if its segments differ."""
    told = {gain for gain, one in zip(record.token_advantages, record.mask, strict=True) if one}
    if len(told) > 1:
        raise BadRecord(f"sequence {record.index} of {record.rollout} has several advantages, and verl takes one")
    return told.pop()


def verl_fields(
    record: Record, *, temperature: float = 1.0, narrowed: bool = False, listed: bool = False
) -> dict[str, Any]:
    """Return the fields of verl's `AgentLoopOutput` without `metrics`. Group, parent, fork and policy versions are in
    `extra_fields`; the oldest and the newest version under the names that verl's asynchronous trainer reads.

    A record that has its advantage (`weighed`) is a group of its own (`uid`) with that as its score: what verl's GRPO
    then computes is the advantage itself. The rollout's reward is in `extra_fields`. `temperature` is that of the
    trainer; `narrowed` takes records that were drawn from a part of the vocabulary; `listed` takes a rollout of several
    sequences that verl gets as one list.

    Raises `BadRecord` for a record that verl would misread, or in which the model generated nothing.
    """
    start, end = _parts(record)
    _sampled(record, temperature, narrowed)
    weighty = record.advantage is not None
    if record.of > 1 and not (weighty or listed):
        raise BadRecord(
            f"{record.rollout} has {record.of} sequences, and verl would take each for a rollout of its group: give "
            "them their advantages first (`weighed`)"
        )
    versions = record.versions
    extra: dict[str, Any] = {
        "uid": f"{record.rollout}/{record.index}" if weighty else record.group,
        "group": record.group,
        "rollout": record.rollout,
        "sequence": record.index,
        "parent": record.parent,
        "fork": record.fork,
        "policies": [[segment.start, segment.end, segment.policy] for segment in record.segments],
        "min_global_steps": versions[0],
        "max_global_steps": versions[-1],
    }
    fields: dict[str, Any] = {
        "prompt_ids": list(record.tokens[:start]),
        "response_ids": list(record.tokens[start:end]),
        "response_mask": list(record.mask[start:end]),
        # Each of the model's turns follows a user's or a tool's; a turn may have several segments.
        "num_turns": 2 * sum(before < now for before, now in pairwise((0, *record.mask))),
        "extra_fields": extra,
    }
    if record.logprobs:
        fields["response_logprobs"] = list(record.logprobs[start:end])
    if weighty:
        extra["reward"] = record.reward
        # verl divides the score of who is alone in its group by 1 and its epsilon.
        fields["reward_score"] = _credit(record) * (1 + _VERL_EPSILON)
    elif record.judged:
        fields["reward_score"] = record.reward
    return fields


def trl_output(
    records: Iterable[Record],
    *,
    temperature: float = 1.0,
    rows: int | None = None,
    narrowed: bool = False,
    masks: bool = True,
) -> dict[str, list[Any]]:
    """Return records as what a `rollout_func` of TRL's `GRPOTrainer` returns: `prompt_ids`, `completion_ids`,
    `logprobs`, `env_mask` (0 for what the model did not write), and `reward`, which TRL hands on to reward functions.

    TRL cuts the list into groups by position. So without advantages each rollout has to be one sequence, and each group
    has to have as many, one after another. With them (`weighed`) `advantage` is there too, a list of numbers for each
    sequence, for a trainer `with_advantages`. `rows`: TRL wants as many outputs as prompts; sequences without a token
    to train on fill them up. `temperature` and `narrowed` as for verl; `masks=False`: a TRL that takes no `env_mask`.

    Raises `BadRecord` for records that TRL would misread, or that have no log-probabilities.
    """
    known = list(records)
    weighty = bool(known) and all(record.advantage is not None for record in known)
    if not weighty:
        _by_position(known)
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "group", *(["advantage"] * weighty))
    out: dict[str, list[Any]] = {name: [] for name in names}
    for record in known:
        start, end = _parts(record)
        _sampled(record, temperature, narrowed)
        where = f"sequence {record.index} of {record.rollout}"
        if not record.logprobs:
            raise BadRecord(f"{where} has no log-probabilities, which TRL needs")
        if not masks and not all(record.mask[start:end]):
            raise BadRecord(f"{where} has tokens that the model did not write, and a TRL without masks trains on them")
        out["prompt_ids"].append(list(record.tokens[:start]))
        out["completion_ids"].append(list(record.tokens[start:end]))
        out["logprobs"].append(list(record.logprobs[start:end]))
        out["env_mask"].append(list(record.mask[start:end]))
        out["reward"].append(record.reward)
        out["group"].append(record.group)
        if weighty:
            out["advantage"].append(list(record.token_advantages[start:end]))
    if rows is not None:
        _fill(out, rows)
    return out


def _by_position(records: Sequence[Record]) -> None:
    """Reject records that TRL would group differently, as it cuts a list of sequences into groups of equal size. Raises
    `BadRecord`."""
    several = next((record for record in records if record.of > 1), None)
    if several is not None:
        raise BadRecord(
            f"{several.rollout} has {several.of} sequences, and TRL would take each for a rollout: give them their "
            "advantages first (`weighed`)"
        )
    runs = [(group, len(list(of))) for group, of in groupby(record.group for record in records)]
    if len(runs) != len(dict(runs)):
        raise BadRecord("the records of a group do not stand together, and TRL cuts groups by position: sort them")
    if len({count for _, count in runs}) > 1:
        sizes = ", ".join(f"{group}: {count}" for group, count in runs[:4])
        raise BadRecord(
            f"groups have different numbers of rollouts ({sizes} …), and TRL cuts groups of one size by position: "
            "leave the smaller ones out, or give records their advantages first (`weighed`)"
        )


def _fill(out: dict[str, list[Any]], rows: int) -> None:
    """Add padding sequences without trained tokens. Raises `BadRecord` if there are more sequences than rows."""
    there = len(out["prompt_ids"])
    if not 0 < there <= rows:
        raise BadRecord(f"{there} sequences do not go into {rows} rows: TRL wants as many outputs as prompts")
    blank = {"logprobs": [0.0], "env_mask": [0], "reward": 0.0, "advantage": [0.0]}
    for _ in range(rows - there):
        for name, values in out.items():
            first = values[0][:1] if name in ("prompt_ids", "completion_ids") else values[0]
            values.append(blank.get(name, first))


def with_advantages(trainer: Any) -> Any:
    """Return TRL's `GRPOTrainer`, or a class of it, as one that trains with the advantages of `trl_output` in the place
    of those that it makes of rewards by position. On one process."""

    class AdvantageTrainer(trainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output: Any = super()._generate_and_score_completions(inputs)
            made = output["advantages"].new_zeros(output["completion_mask"].shape)
            for row, item in enumerate(inputs):
                gains = item["advantage"]
                made[row, : len(gains)] = made.new_tensor(gains)
            output["advantages"] = made
            return output

    return AdvantageTrainer

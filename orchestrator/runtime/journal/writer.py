"""Decides what of a driver's events goes into its journal, when, and what must be on the disk before anything is done.

News of generated text make up most of a run's events and decide nothing by themselves: those of one attempt are written
as one event, before the next event that decides something, and about once a second meanwhile. A machine that takes the
merged event stands where the driver's stands after the single ones, so a replay gives the same actions. Where a policy
of the run reviews every piece of news, each is written as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from ...core.events import Action, Event, Expand, Failed, Job, Progressed, Stopped, Succeeded
from ...machine.machine import Machine
from .journal import Journal, Note

EVERY = 1.0
"""Seconds that news of generated text may wait to be written with what follows it."""


@dataclass(slots=True, eq=False)
class Entry:
    """One event as it is written: as it came, or several pieces of news of one attempt."""

    event: Event
    since: float
    seq: int | None = None
    unhandled: int = 1
    actions: list[Action] = field(default_factory=list[Action])


class Recorder:
    """Writes a driver's events to a journal that it opens when told to; what comes before is kept until then."""

    def __init__(self, journal: Journal, machine: Machine, *, every: float = EVERY) -> None:
        self.journal = journal
        self._machine = machine
        self._every = every
        self._pending: dict[int, Entry] = {}
        self._heard: set[int] = set()
        self._intents: set[int] = set()
        self._early: list[Entry] = []
        self.off = False
        """Nothing is written any more, and nothing kept."""

    def open(
        self,
        meta: Mapping[str, JsonValue] | None = None,
        *,
        grace: float = 10.0,
        lease: float | None = None,
        resumes: str | None = None,
        base: int | None = None,
    ) -> None:
        """Open the journal, if that has not been done, and write what came before. Raises `ConfigError`."""
        if self.off or self.journal.is_open:
            return
        self.journal.open(meta=meta, grace=grace, lease=lease, resumes=resumes, base=base)
        early, self._early = self._early, []
        self._write(early)

    def take(self, batch: Sequence[Event]) -> list[Entry | None]:
        """Write events that are about to be handled. Return an entry for each, to be given back with its actions."""
        if self.off:
            return [None] * len(batch)
        entries: list[Entry | None] = []
        lines: list[Entry] = []
        sync = False
        for event in batch:
            if isinstance(event, Progressed):
                entries.append(self._heard_of(event, lines))
                continue
            lines += self._pending.values()
            self._pending.clear()
            if isinstance(event, Succeeded | Failed | Stopped):
                sync |= event.attempt in self._intents
                self._intents.discard(event.attempt)
                self._heard.discard(event.attempt)
            entry = Entry(event, event.at)
            entries.append(entry)
            lines.append(entry)
        self._write(lines, sync)
        return entries

    def acted(self, entry: Entry | None, actions: Sequence[Action]) -> None:
        """Note what followed from one of an entry's events."""
        if entry is None or self.off:
            return
        entry.unhandled -= 1
        if entry.actions and actions:
            entry.actions = _joined(entry.actions, actions)
        else:
            entry.actions += actions
        if not entry.unhandled and entry.seq is not None:
            self.journal.acted(entry.seq, entry.actions)
        if any(action.kind == "finish" for action in actions) and self.journal.is_open:
            self.journal.flush()  # how it ended is to be seen from outside from now on

    def intent(self, job: Job) -> None:
        """Have it on the disk that a call which changes the world is about to be made."""
        if self.off or not self.journal.is_open:
            return
        self._intents.add(job.attempt)
        self.journal.note(Note(job.run, job.step, job.attempt, "intent", job.op.model_dump(mode="json")))

    def note(self, run: str, step: str, kind: str, value: JsonValue) -> None:
        """Write a note of a run."""
        if not self.off and self.journal.is_open:
            self.journal.note(Note(run, step, None, kind, value))

    def stop(self) -> None:
        """Write nothing more."""
        self.off = True
        self._early.clear()
        self._pending.clear()

    def retire(self) -> None:
        """Close the journal and write nothing more."""
        self.close()
        self.stop()

    def close(self) -> None:
        """Write what is left and close the journal."""
        if not self.off and self.journal.is_open:
            self._write(list(self._pending.values()))
        self._pending.clear()
        self.journal.close()

    def _heard_of(self, event: Progressed, lines: list[Entry]) -> Entry | None:
        attempt = self._machine.attempts.get(event.attempt)
        if attempt is None:  # late: the machine only counts it
            return None
        held = self._pending.pop(event.attempt, None)
        if event.attempt not in self._heard or attempt.node.run.reviewers:
            self._heard.add(event.attempt)
            lines += [each for each in (held,) if each is not None]
            entry = Entry(event, event.at)
            lines.append(entry)
            return entry
        if held is not None and isinstance(held.event, Progressed) and _alike(held.event, event):
            held.event = _merged(held.event, event)
            held.unhandled += 1
        else:
            lines += [each for each in (held,) if each is not None]
            held = Entry(event, event.at)
        if event.at - held.since >= self._every:
            lines.append(held)
        else:
            self._pending[event.attempt] = held
        return held

    def _write(self, entries: Iterable[Entry], sync: bool = False) -> None:
        entries = list(entries)
        if not entries:
            return
        if not self.journal.is_open:
            self._early += entries
            return
        first = self.journal.append([entry.event for entry in entries], sync=sync)
        for seq, entry in enumerate(entries, first):
            entry.seq = seq
            if not entry.unhandled:
                self.journal.acted(seq, entry.actions)


def _alike(first: Progressed, then: Progressed) -> bool:
    """Whether two pieces of news can be told as one: both say their token ids, or neither does."""
    return bool(first.ids) == bool(then.ids) and (first.logprob is None) == (then.logprob is None)


def _merged(first: Progressed, then: Progressed) -> Progressed:
    tokens = first.tokens + then.tokens
    logprob = then.logprob
    if first.logprob is not None and then.logprob is not None and tokens:
        logprob = (first.logprob * first.tokens + then.logprob * then.tokens) / tokens
    lows = [low for low in (first.lowest, then.lowest) if low is not None]
    return replace(
        then,
        text=first.text + then.text,
        tokens=tokens,
        logprob=logprob,
        ids=(*first.ids, *then.ids),
        group=first.group if then.group is None else then.group,
        lowest=min(lows) if lows else None,
    )


def _joined(before: Sequence[Action], then: Sequence[Action]) -> list[Action]:
    """Return what follows from the merged news: one piece of text for the step's reader."""
    joined = list(before)
    for action in then:
        last = joined[-1] if joined else None
        if isinstance(action, Expand) and isinstance(last, Expand) and action.delta and last.delta:
            joined[-1] = replace(last, delta=last.delta + action.delta)
        else:
            joined.append(action)
    return joined

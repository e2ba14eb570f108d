"""Rollouts on disk: an append-only file of records that survives a kill of its writer or reader.

All records of a rollout are written in one piece. The next writer cuts off a torn piece of a killed writer, and its
rollout is made again; a complete rollout is never made again. A reader remembers how many rollouts it has taken
(`RolloutReader.taken`) in its own checkpoint, so that it gets each exactly once, however often either side is killed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Self

from plait.core.errors import ConfigError, PlaitError
from plait.core.interfaces import PluginRegistry
from plait.core.provenance import Provenance
from plait.runtime.journal.directory import RunEntry
from plait.runtime.journal.replay import histories
from plait.runtime.runlog import RunLog, RunRecord

from .record import BadRecord, Record, whole


class Store:
    """The file, open for writing. One process at a time writes it, and any number of processes read it.

    `header` describes the prompts and settings; a file with another header is rejected (`ConfigError`), for its
    rollouts answer other prompts.
    """

    def __init__(self, path: Path, header: Mapping[str, object], *, sync: bool = False) -> None:
        self.path = path
        self.done: set[str] = set()
        """Ids of the stored rollouts."""
        self._sync, self._header = sync, header
        self._made: Provenance | None = None
        try:
            self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"another process writes {path}: wait for it, or name another file") from None
        try:
            self._take_up(header)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, records: Sequence[Record]) -> None:
        """Write the records of one complete rollout; a stored rollout is skipped."""
        if not whole(records):
            raise BadRecord("these are not all the records of one rollout, in order")
        # Two producers may have made the same rollout; the first one stays.
        if records[0].rollout in self.done:
            return
        piece = "".join(record.line() for record in records).encode(errors="replace")
        # One write, so that a killed writer leaves all of the rollout or nothing.
        os.write(self._file.fileno(), piece) if len(piece) < 1 << 20 else self._file.write(piece)
        self._file.flush()
        if self._sync:
            os.fsync(self._file.fileno())
        self.done.add(records[0].rollout)

    def claim(self, made: Provenance) -> None:
        """Store the provenance of the rollouts, or compare it with an earlier try's. Raises `ConfigError`."""
        # All stored rollouts must come from the same models.
        if self._made is not None:
            made.demand(self._made, str(self.path))
            return
        self._made = made
        if not self.done:
            self._begin({**self._header, "provenance": made.model_dump(mode="json")})

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def _begin(self, header: Mapping[str, object]) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps({"rollouts": 1, **header}).encode() + b"\n")
        self._file.flush()

    def _take_up(self, header: Mapping[str, object]) -> None:
        first = self._file.readline()
        if not first.endswith(b"\n"):  # new, or killed while its first line was written
            self._begin(header)
            return
        known = _header(first, self.path)
        made = known.pop("provenance", None)
        self._made = None if made is None else Provenance.model_validate(made)
        if known != {"rollouts": 1, **json.loads(json.dumps(dict(header)))}:
            raise ConfigError(
                f"{self.path} holds rollouts of something else (other prompts, planner, model or options): name "
                "another file, or delete this one"
            )
        end = self._file.tell()
        for rollout, place in _pieces(self._file, str(self.path)):
            self.done.add(rollout[0].rollout)
            end = place
        # A partial rollout of a killed writer is made again completely.
        self._file.truncate(end)
        self._file.seek(end)


@dataclass(slots=True)
class SkipCounts:
    """Counts of the rollouts that a reader skipped, by reason."""

    read: int = 0
    """Number of returned rollouts."""
    stale: int = 0
    """Rollouts older than `max_staleness` allowed when they were read."""
    unjudged: int = 0
    """Rollouts without a reward, or with one that is not a number."""
    refused: int = 0
    """Rollouts that `check` rejected."""
    why: dict[str, int] = field(default_factory=dict[str, int])
    """Number of rejected rollouts by reason."""


class RolloutReader:
    """Takes rollouts from a file, in the order in which they were written, from the one after `taken` on.

    Rollouts of one prompt (`Record.group`) may be apart in the file and come with different calls. A trainer on groups
    collects them before `weighed`; a `Feed` does that by itself.

    Args:
        path: the file; it may be growing.
        taken: number of whole rollouts taken before, including those left out.
        max_staleness: maximum number of weight updates between the oldest token of a rollout and now.
        check: returns the error of a record, or an empty text; see `retokenised`.
        supervised: rewards are not needed.
    """

    def __init__(
        self,
        path: Path,
        taken: int = 0,
        *,
        max_staleness: int | None = None,
        check: Callable[[Record], str] = lambda record: "",
        supervised: bool = False,
    ) -> None:
        self.taken = taken
        self.counts = SkipCounts()
        self._path, self._max, self._check, self._supervised = path, max_staleness, check, supervised
        self._place = 0
        self._skip = taken

    def take(self, most: int, version: int = 0) -> list[list[Record]]:
        """Return at most `most` available rollouts that weights of this version may be trained on."""
        out: list[list[Record]] = []
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from None
        with file:
            if not self._place:
                first = file.readline()
                if not first.endswith(b"\n"):
                    return []
                _header(first, self._path)
                self._place = file.tell()
            file.seek(self._place)
            pieces = _pieces(file, str(self._path))
            while len(out) < most and (piece := next(pieces, None)) is not None:
                rollout, self._place = piece
                if self._skip:
                    self._skip -= 1
                    continue
                self.taken += 1
                if self._wanted(rollout, version):
                    self.counts.read += 1
                    out.append(rollout)
        return out

    def _wanted(self, rollout: list[Record], version: int) -> bool:
        oldest = min((version_ for record in rollout for version_ in record.versions), default=version)
        if self._max is not None and version - oldest > self._max:
            self.counts.stale += 1
            return False
        if not self._supervised and not all(record.judged for record in rollout):
            self.counts.unjudged += 1
            return False
        faults = [fault for fault in map(self._check, rollout) if fault]
        if not self._supervised and not all(record.logprobs or not record.generated for record in rollout):
            faults.append("it has no log-probabilities")
        if faults:
            self.counts.refused += 1
            self.counts.why[faults[0]] = self.counts.why.get(faults[0], 0) + 1
            return False
        return True


def read_rollouts(path: Path) -> Iterator[list[Record]]:
    """Yield the whole rollouts of a file. Raises `ConfigError` for an invalid file, `BadRecord` for a damaged line."""
    reader = RolloutReader(path, supervised=True)
    yield from reader.take(1 << 62)


def reward(value: object) -> float | None:
    """Convert a reward to its form in a record: a number, `nan` for an invalid value, `None` for nothing."""
    if value is None:
        return None
    # A verdict is a reward of 0 or 1.
    if isinstance(value, bool | int | float):
        return float(value)
    return math.nan


def _header(line: bytes, path: Path) -> dict[str, object]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("rollouts") != 1:
        raise ConfigError(
            f"{path} holds no rollouts: its first line is not the header that `plait learn rollouts` writes"
        )
    return header


def _pieces(file: BinaryIO, name: str) -> Iterator[tuple[list[Record], int]]:
    """Yield whole rollouts from here on, each with the position after it; a torn end is skipped."""
    held: list[Record] = []
    while (line := file.readline()).endswith(b"\n"):
        record = Record.read(line, f"{name} at byte {file.tell() - len(line)}")
        if held and (record.rollout != held[0].rollout or record.index != len(held)):
            held = []  # the writer was killed between two writes of a large piece
        held.append(record)
        if whole(held):
            yield held, file.tell()
            held = []


def stored_runs(
    entries: Iterable[RunEntry], plugins: PluginRegistry, failed: Callable[[PlaitError], None]
) -> Iterator[RunRecord]:
    """Yield the records of runs with their attempts. Each journal is replayed about once, for any number of its runs.
    `failed` is called for each run that cannot be read."""
    for path, together in groupby(entries, key=lambda entry: entry.path):
        left = {entry.run for entry in together}
        try:
            for several, moments in histories(path, plugins, left):
                log = RunLog(several, keep="attempts")
                waiting = set(several)
                for moment in moments:
                    for run in log.take(moment.event, moment.machine, moment.actions).finished:
                        waiting.discard(run.id)
                        left.discard(run.id)
                        log.pop(run.id)
                        yield run
                    if not waiting:
                        break
                for name in sorted(waiting):  # these runs have not ended
                    left.discard(name)
                    if (run := log.pop(name)) is not None:
                        yield run
            if left:
                raise ConfigError(f"{path} does not hold all the runs that its index names: the file is damaged")
        except PlaitError as error:
            for _ in left:
                failed(error)

"""Records of runs that have ended, out of journals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from plait.core.errors import ConfigError, PlaitError
from plait.core.interfaces import PluginRegistry
from plait.runtime.journal.directory import RunEntry
from plait.runtime.journal.replay import histories
from plait.runtime.runlog import RunLog, RunRecord


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
                for name in sorted(waiting):  # these have not ended
                    left.discard(name)
                    if (run := log.pop(name)) is not None:
                        yield run
            if left:
                raise ConfigError(f"{path} does not hold all the runs that its index names: the file is damaged")
        except PlaitError as error:
            for _ in left:
                failed(error)

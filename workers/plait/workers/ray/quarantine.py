"""Finds out which prompt kills engines, before it has killed them all."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable

from plait.core.events import Job
from plait.core.result import Failure

SUSPECT_DEATHS = 2
"""Number of engine deaths with the same prompt in flight after which the prompt is suspected."""
REMEMBERED = 3600.0
"""Seconds after which a death is forgotten."""


class Quarantine:
    """The suspected prompts of all workers of a pool.

    A prompt that was in flight at two deaths within an hour is a suspect. If it is the only one, it is not run again.
    Several suspects run one at a time from then on, in the whole pool. If the engine dies once more while a suspect
    runs, that suspect is not run again.
    """

    def __init__(self) -> None:
        self._deaths: dict[str, list[float]] = {}
        self._condemned: dict[str, float] = {}
        self._alone = asyncio.Lock()
        self._last: dict[str, str] = {}
        """Why an engine died last with a prompt, as far as it said so."""

    def died(self, jobs: Iterable[Job], now: float | None = None, reason: str = "") -> None:
        """Record the jobs in an engine at its death, and the cause."""
        now = time.monotonic() if now is None else now
        suspects: list[str] = []
        for prompt in {fingerprint(job) for job in jobs}:
            deaths = [at for at in self._deaths.get(prompt, ()) if now - at < REMEMBERED]
            self._deaths[prompt] = [*deaths, now]
            self._last[prompt] = reason
            if len(deaths) + 1 >= SUSPECT_DEATHS:
                suspects.append(prompt)
        known = [prompt for prompt in suspects if len(self._deaths[prompt]) > SUSPECT_DEATHS]
        self._condemned |= dict.fromkeys(known or (suspects if len(suspects) == 1 else ()), now)

    def refusal(self, job: Job, now: float | None = None) -> Failure | None:
        """Return why a job may not run, if it may not."""
        if not self._condemned:
            return None
        since = self._condemned.get(fingerprint(job))
        if since is None or (time.monotonic() if now is None else now) - since > REMEMBERED:
            return None
        reason = self._last.get(fingerprint(job), "")
        because = f" (the last time: {reason})" if reason else ""
        return Failure(
            kind="EngineError",
            message=f"the same prompt or call was running each time that its worker died{because}, so it is not run "
            "again within the hour: look into the worker's log, or change it",
        )

    def turn(self, job: Job) -> asyncio.Lock | None:
        """Return the lock under which a suspect runs; `None` for a job that is no suspect."""
        if not self._deaths:
            return None
        now = time.monotonic()
        deaths = [at for at in self._deaths.get(fingerprint(job), ()) if now - at < REMEMBERED]
        return self._alone if len(deaths) >= SUSPECT_DEATHS else None

    def cleared(self, job: Job) -> None:
        """Record the end of a job whose engine survived it."""
        if self._deaths:
            self._deaths.pop(fingerprint(job), None)
            self._last.pop(fingerprint(job), None)


def fingerprint(job: Job) -> str:
    """Return a key that jobs with the same prompt share, whatever their seed, temperature and length."""
    op = job.op.model_dump_json(exclude={"sampling": {"seed", "temperature", "max_tokens"}})
    return hashlib.blake2b(op.encode(errors="replace"), digest_size=16).hexdigest()

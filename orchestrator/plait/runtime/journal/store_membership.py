"""Membership of this process in a store: send heartbeats, receive orders of other processes for its runs, and find the
runs of processes that have died."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from ...core.errors import ConfigError
from .connection import open_connection
from .location import Database

if TYPE_CHECKING:
    import psycopg
from .connection import connected

log = logging.getLogger("plait.journal")

LEASE_S = 10.0
"""Default seconds of silence after which a process counts as dead."""
CHANNEL = "plait_orders"
LOAD_CHANNEL = "plait_load"
LOAD_INTERVAL_S = 0.1
"""Seconds between two reports of this process's load, and between two readings of the others'."""
_POLL_INTERVAL_S = 0.5
"""Maximum seconds between two checks for orders, in case a notification is lost."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """An order of another process about a run."""

    run: str
    verb: str
    """`cancel`, `prune`, `pause`, `resume`."""
    about: str
    """Name of a step, where the verb needs one."""
    value: JsonValue


class ProcessMember:
    """This process's row; a separate thread sends its heartbeats.

    A process that was silent for too long counts as ended for good: it gets another row and can no longer write its
    former journals.
    """

    def __init__(self, database: Database, pool: str, lease: float) -> None:
        self.database = Database(database.url)
        self.pool, self.lease = pool, lease
        self.id = ""
        self.users = 0
        self.on_order: list[Callable[[RunOrder], None]] = []
        """Called on the thread, for orders about runs of this process."""
        self.on_orphans: list[Callable[[list[str]], None]] = []
        """Called on the thread with runs of the pool whose process has ended."""
        self.wants: Callable[[], int] = lambda: 0
        """How many slots of the engines this process could use now."""
        self.on_shares: list[Callable[[dict[str, int]], None]] = []
        """Called on the thread after each heartbeat, with the slots that each live process of the pool could use."""
        self.load: Callable[[dict[str, int] | None], dict[str, int]] | None = None
        """Takes the attempts of all other processes by worker, if they changed, and returns those of this process."""
        self._reported, self._sums = "", Counter[str]()
        self._others: dict[str, tuple[float, dict[str, int]]] = {}
        """Attempts by process and worker, and when the process reported them."""
        self._given_up: deque[int] = deque()
        """Journals that could not be written, whose runs have failed without a record."""
        self._end = threading.Event()
        self._register()
        self._thread = threading.Thread(target=self._live, name="plait-member", daemon=True)
        self._thread.start()

    def _open(self) -> psycopg.Connection[Any]:
        return open_connection(self.database)

    def _register(self) -> None:
        """Take a new row."""
        made = secrets.token_hex(12)
        with contextlib.closing(self._open()) as db:
            db.execute(
                "INSERT INTO plait.processes (id, host, pid, lease) VALUES (%s, %s, %s, make_interval(secs => %s))",
                (made, socket.gethostname(), os.getpid(), self.lease),
            )
        self.id = made

    def close(self) -> None:
        """End the thread, and record that this process has ended."""
        self._end.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def give_up(self, journal: int) -> None:
        """Record the runs of one of this process's journals as failed; on the thread, once the store is reachable."""
        self._given_up.append(journal)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        db: psycopg.Connection[Any] | None = None
        due = looked = polled = 0.0
        while not self._end.is_set():
            try:
                if db is None or db.closed:
                    db = self._open()
                    db.execute(f"LISTEN {CHANNEL}; LISTEN {LOAD_CHANNEL}")  # pyright: ignore[reportArgumentType, reportCallIssue]
                now = time.monotonic()
                if now >= due:
                    due = now + self.lease / 5
                    self._reported = ""
                    if not self._beat(db):
                        log.warning("no heartbeat for %g s: other processes may take this one's runs", self.lease)
                        self._register()
                if now >= polled:
                    polled = now + _POLL_INTERVAL_S
                    self._orders(db)
                self._exchange_load(db, now)
                self._say_failed(db)
                if self.on_orphans and now >= looked:
                    looked = now + self.lease / 4
                    if orphans := self._orphans(db):
                        self.on_orphans[0](orphans)
                if self._wait(db):
                    polled = 0.0
            except Exception as error:
                log.warning("the store %s: %s", self.database, str(error).partition("\n")[0])
                with contextlib.suppress(Exception):
                    if db is not None:
                        db.close()
                db = None
                self._end.wait(0.5)
        with contextlib.suppress(Exception):
            db = db or self._open()
            db.execute("UPDATE plait.processes SET over = true WHERE id = %s", (self.id,))
        with contextlib.suppress(Exception):
            if db is not None:
                db.close()

    def _beat(self, db: psycopg.Connection[Any]) -> bool:
        update = (
            "UPDATE plait.processes SET beat = now(), pool = %s, wants = %s WHERE id = %s AND NOT over RETURNING id"
        )
        if db.execute(update, (self.pool, self.wants(), self.id)).fetchone() is None:
            return False
        if self.on_shares:
            alive = "SELECT id, wants FROM plait.processes WHERE pool = %s AND NOT over AND beat + lease >= now()"
            wants = dict(db.execute(alive, (self.pool,)).fetchall())
            for tell in self.on_shares:
                tell(wants)
        return True

    def _wait(self, db: psycopg.Connection[Any]) -> bool:
        """Wait for notifications; read the others' load, and return whether there is an order."""
        ordered = False
        wait, stop = (LOAD_INTERVAL_S, None) if self.load is not None else (min(_POLL_INTERVAL_S, self.lease / 5), 1)
        for note in db.notifies(timeout=wait, stop_after=stop):
            ordered = ordered or note.channel == CHANNEL
            if note.channel == LOAD_CHANNEL and self.load is not None:
                pool, process, attempts = json.loads(note.payload)
                if pool == self.pool and process != self.id:
                    self._others[process] = time.monotonic(), attempts
        return ordered

    def _exchange_load(self, db: psycopg.Connection[Any], now: float) -> None:
        """Pass on the others' load if it has changed, and report this process's; all of it after each heartbeat."""
        load = self.load  # another thread takes it away at the end
        if load is None:
            return
        self._others = {name: known for name, known in self._others.items() if now - known[0] < self.lease}
        before, self._sums = self._sums, Counter[str]()
        for _, attempts in self._others.values():
            self._sums.update(attempts)
        own = Counter(load(dict(self._sums) if self._sums != before else None))
        report = json.dumps([self.pool, self.id, dict(own.most_common(400))])  # a notification has up to 8,000 bytes
        if report != self._reported:
            self._reported = report
            # A lost report does no harm, so its commit need not wait for the disk.
            notify = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
            db.execute(notify, (LOAD_CHANNEL, report))

    def _orders(self, db: psycopg.Connection[Any]) -> None:
        if not self.on_order:
            return
        orders = db.execute(
            "DELETE FROM plait.orders o USING plait.runs r, plait.journals j WHERE r.run = o.run AND j.id = r.journal "
            "AND j.process = %s AND o.verb <> 'answer' RETURNING o.id, o.run, o.verb, o.about, o.value",
            (self.id,),
        ).fetchall()
        for _, run, verb, about, value in sorted(orders):
            for listener in list(self.on_order):
                listener(RunOrder(run, verb, about, json.loads(value)))

    def _say_failed(self, db: psycopg.Connection[Any]) -> None:
        """Record the runs of abandoned journals as failed. Runs taken over by other processes are in other journals."""
        while self._given_up:
            ended = datetime.now(UTC).isoformat(timespec="seconds")
            db.execute(
                "UPDATE plait.runs SET status = 'failed', ended = %s WHERE journal = %s AND status IS NULL",
                (ended, self._given_up[0]),
            )
            self._given_up.popleft()

    def _orphans(self, db: psycopg.Connection[Any]) -> list[str]:
        rows = db.execute(
            "SELECT r.run FROM plait.runs r JOIN plait.journals j ON j.id = r.journal "
            "LEFT JOIN plait.processes p ON p.id = j.process "
            "WHERE r.status IS NULL AND j.pool = %s AND (p.id IS NULL OR p.over OR p.beat + p.lease < now()) "
            "ORDER BY r.number",
            (self.pool,),
        ).fetchall()
        return [run for (run,) in rows]


_members: dict[tuple[int, str], ProcessMember] = {}
_lock = threading.Lock()


def acquire(database: Database, pool: str = "", lease: float = LEASE_S) -> ProcessMember:
    """Return this process's membership of a store; begin it first if necessary. Raises `ConfigError`."""
    with _lock:
        key = (os.getpid(), database.url)
        if key not in _members:
            _members[key] = ProcessMember(database, pool, lease)
        member = _members[key]
        if pool and member.pool != pool:
            if member.pool:
                raise ConfigError(f"this process is of the pool {member.pool!r} already: give all the same `pool`")
            member.pool = pool
        member.users += 1
        return member


def release(member: ProcessMember) -> None:
    """Give it back; the last to do so ends it."""
    with _lock:
        member.users -= 1
        if member.users:
            return
        _members.pop((os.getpid(), member.database.url), None)
    member.close()


_SPAN = "floor(extract(epoch FROM now()) / %s)::bigint"
"""Of a counter: the database's clock is one for all servers, and a wrong clock of one of them begins no new day."""


class Counters:
    """Methods raise `ConfigError`, and may be called on any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._holder = secrets.token_hex(8)

    def add(
        self, name: str, span_s: int, amounts: tuple[float, ...], held: tuple[float, ...] = ()
    ) -> tuple[float, ...]:
        """Add amounts to the counters of the period of this many seconds (a minute or day since 1970) in which the
        database's clock is. Returns that clock's time in seconds since 1970, and the sums; zeros only read the
        counters. `held`: what this object holds of each from now on."""
        now, sums = 0.0, list[float]()
        with connected(self._database) as db, db.transaction():
            # The last spans stay: a clock that is set back finds what was counted in them.
            db.execute(f"DELETE FROM plait.counters WHERE name = %s AND span < {_SPAN} - 2", (name, span_s))
            for place, amount in enumerate(amounts):
                row = db.execute(
                    f"INSERT INTO plait.counters AS c (name, span, place, n) VALUES (%s, {_SPAN}, %s, %s) ON CONFLICT "
                    "(name, span, place) DO UPDATE SET n = c.n + excluded.n RETURNING extract(epoch FROM now()), n",
                    (name, span_s, place, amount),
                ).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
                assert row is not None
                now = float(row[0])
                sums.append(row[1])
            for place, amount in enumerate(held):
                self._hold(db, name, place, amount)
        return (now, *sums)

    def reserve(self, name: str, span_s: int, place: int, held: float, wanted: float, limit: float) -> float:
        """Reserve up to `wanted` of a counter's limit beside what this object holds; return the sum.

        A process without a heartbeat holds nothing. While other processes live, half of what is free is left
        to them, until it is a 64th of the limit.
        """
        alive = "NOT p.over AND p.beat + p.lease >= now()"
        with connected(self._database) as db, db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
            db.execute("DELETE FROM plait.holdings h USING plait.processes p WHERE p.id = h.process AND p.over")
            row = db.execute(
                f"SELECT (SELECT coalesce(sum(n), 0) FROM plait.counters WHERE name = %s AND span = {_SPAN} AND place "
                f"= %s) + coalesce(sum(h.n), 0), (SELECT count(*) FROM plait.processes p WHERE p.id <> %s AND {alive}) "
                "FROM plait.holdings h JOIN plait.processes p ON p.id = h.process "
                f"WHERE h.name = %s AND h.place = %s AND h.holder <> %s AND {alive}",
                (name, span_s, place, self._process, name, place, self._holder),
            ).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
            assert row is not None
            free = max(0.0, limit - row[0] - held)
            most = free / 2 if row[1] and free > limit / 64 else free
            self._hold(db, name, place, held + min(wanted, most))
        return held + min(wanted, most)

    @property
    def _process(self) -> str:
        member = _members.get((os.getpid(), self._database.url))
        return "" if member is None else member.id

    def _hold(self, db: psycopg.Connection[Any], name: str, place: int, amount: float) -> None:
        if process := self._process:
            update = "ON CONFLICT (name, place, holder) DO UPDATE SET process = excluded.process, n = excluded.n"
            row = (name, place, self._holder, process, amount)
            db.execute(f"INSERT INTO plait.holdings VALUES (%s, %s, %s, %s, %s) {update}", row)

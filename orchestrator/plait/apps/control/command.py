"""`plait runs cancel|pause|set`, `show --follow`, `list --live` and `run --detach`: follow and steer running runs from
another process. What can be done to a run are the rows of a table, `runtime/control/verbs.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...core.errors import UsageError, WorldError
from ...runtime.client.config import Config
from ...runtime.control.socket import Peer, peers
from ...runtime.control.verbs import VERBS, Verb, limit_of
from ...runtime.journal.directory import default_folder, match_run
from ...runtime.journal.location import Database
from ..common.options import Json
from ..common.output import Output, opened, safe
from .distant import Distant, under_way


def detached(words: Sequence[str], seconds: float = 300.0) -> dict[str, Any]:
    """Start a command, wait until its run has started, and return run, process, socket, and the file of its output. A
    run that has ended by then has no socket.

    Raises `WorldError` with the command's output if it fails before.
    """
    folder = default_folder().parent / "detached"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}.out"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:  # noqa: PTH123
        process = subprocess.Popen(
            [sys.executable, "-m", "plait", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        launch: dict[str, Any] = {"event": "launch", "pid": process.pid, "output": str(path)}
        for peer in peers():
            if peer.path.name.startswith(f"{process.pid}-"):
                for row in _rows(peer):
                    process.returncode = (
                        0  # it is no longer a child of this process: no warning when this object is deleted
                    )
                    return {**launch, "run": row["run"], "socket": str(peer.path)}
        code = process.poll()
        if code == 0:
            return {**launch, "run": None, "socket": None}
        if code is not None:
            raise WorldError(f"the command ended with code {code}: {_tail(path)}")
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise WorldError(f"no run started within {seconds:g} s: {_tail(path)}")


def _rows(peer: Any) -> list[dict[str, Any]]:
    try:
        return list(peer.ask("list"))
    except OSError:
        return []


def _tail(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-500:] or "it said nothing"


_INTERVAL_S = 1.0


def show_live(output: Output, follow: bool) -> None:
    """Show all running runs on this host, and in the store that `journal` names: steps, tokens per second, budgets, and
    the workers that they share. `follow`: again each second, until Ctrl-C; as JSON each snapshot is one line."""
    before: dict[str, tuple[float, int]] = {}
    if not follow:
        look = _look(before)
        show = output.people.print if output.people.is_terminal else output.print_whole
        output.result(look) if output.json else show(_shown(look))
        return
    with Live(console=output.people, auto_refresh=False, screen=output.people.is_terminal) as live:
        while True:
            look = _look(before)
            output.result(look) if output.json else live.update(_shown(look), refresh=True)
            time.sleep(_INTERVAL_S)


def _look(before: dict[str, tuple[float, int]]) -> dict[str, Any]:
    """Return the processes and their runs, with the tokens a second since the last look."""
    seen: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    now = time.monotonic()
    for _, process, listed in processes():
        seen.append({**process, "runs": len(listed)})
        for row in listed:
            rate = _rate(before, row["run"], row["tokens"], now, row["seconds"])
            rows.append({**row, "pid": process["pid"], "tokens_per_second": rate})
    if (store := store_of_settings()) is not None:
        here = {row["run"] for row in rows}
        for row in [row for row in under_way(store) if row["run"] not in here]:  # its journal lags by a batch
            rows.append({**row, "pid": None, "tokens_per_second": _rate(before, row["run"], row["tokens"], now)})
    for gone in before.keys() - {row["run"] for row in rows}:
        del before[gone]
    return {"processes": seen, "runs": rows}


def _rate(before: dict[str, tuple[float, int]], run: str, tokens: int, now: float, seconds: float = 0.0) -> float:
    """Return a run's tokens a second since the last look, or since it began, if that is known; 0 if it is not."""
    at, had = before.get(run, (now - seconds, 0 if seconds else tokens))
    before[run] = now, tokens
    return round((tokens - had) / max(0.001, now - at), 1)


def _shown(look: dict[str, Any]) -> Group:
    lines: list[Any] = []
    for process in look["processes"]:
        workers = ", ".join(f"{worker['name']} ({worker['slots']} slots)" for worker in process["workers"])
        lines.append(
            Text(safe(f"{process['pid']}  plait {' '.join(process['words'][:2])}  {process['runs']} runs  {workers}"))
        )
    rate = sum(row["tokens_per_second"] for row in look["runs"])
    lines.append(Text(f"{len(look['runs'])} runs, {rate:.1f} tokens a second", style="bold"))
    return Group(*lines, *([_table(look["runs"])] if look["runs"] else []))


def _table(rows: list[dict[str, Any]]) -> Table:
    made = Table(box=None, pad_edge=False)
    for name in ("run", "pid", "status", "planner", "steps", "running", "tokens", "seconds", "asks", "text"):
        made.add_column(name, no_wrap=True, overflow="ellipsis", justify="left")
    for row in rows:
        cells = (
            *(row["run"][:8], str(row["pid"] or "store"), row["status"], row["planner"]),
            f"{row['done']}/{row['steps']}" if "steps" in row else "",
            *(str(row.get("running", "")), str(row["tokens"])),
            f"{row['seconds']:.1f}" if "seconds" in row else "",
            *(str(len(row.get("questions", ())) or ""), " ".join(row["text"].split())[:60]),
        )
        made.add_row(*map(safe, cells))
    return made


RunUnderWay = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's id or a unique prefix of it (at least 4 characters where the run is "
                   "changed); by default the only running run."),
]  # fmt: skip


def processes() -> Iterator[tuple[Peer, dict[str, Any], list[dict[str, Any]]]]:
    """Yield each process of this host, what it is, and its runs. One that ends meanwhile is passed over."""
    for peer in peers():
        try:
            yield peer, next(peer.ask("process")), list(peer.ask("list"))
        except (OSError, StopIteration):
            continue


def store_of_settings() -> Database | None:
    """Return the store that the settings name, if they name one."""
    journal = Config.load().journal
    return journal if isinstance(journal, Database) else None


def find(run: str | None, *, changes: bool = True) -> tuple[Peer | Distant, str] | None:
    """Return the process of a running run (or the run in the store) and its whole id; `None` if there is no such run.
    `run`: its id or a prefix; `None`: the only one. `changes`: whether the caller will change it. Raises `UsageError`
    for an id that is ambiguous, empty, or too short to change a run."""
    runs = {row["run"]: peer for peer, _, rows in processes() for row in rows}
    name = match_run(run, runs, changes=changes)
    if name is not None:
        return runs[name], name
    store = store_of_settings()
    if store is None:
        return None
    name = match_run(run, (row["run"] for row in under_way(store)), changes=changes)
    return None if name is None else (Distant.find(store, name), name)


def _found(run: str | None, *, changes: bool = True) -> tuple[Peer | Distant, str]:
    under_way = find(run, changes=changes)
    if under_way is None:
        which = "no run" if run is None else f"no run {run!r}"
        raise UsageError(f"{which} is running here: `plait runs list --live` shows the running runs")
    return under_way


def row_of(where: Peer | Distant, run: str) -> dict[str, Any]:
    """Return a running run with all of its steps."""
    return where.show() if isinstance(where, Distant) else next(where.ask("show", run=run))


def steer(verb: Verb, where: Peer | Distant, run: str, **given: Any) -> None:
    """Do a verb to a run of another process. Raises `UsageError` if it is refused there."""
    if isinstance(where, Distant):
        verb.do(where, **given)
    else:
        list(where.ask(verb.name, run=run, **given))


def _steer(run: str | None, verb: str, output: Output, **given: str) -> None:
    where, name = _found(run)
    steer(VERBS[verb], where, name, **given)
    words = " ".join(value for key, value in given.items() if key != "reason")
    output.report({"run": name, "done": verb, **given}, f"{' '.join(filter(None, (verb, words)))}: run {name}")


def cancel(
    run: RunUnderWay = None,
    step: Annotated[
        str, typer.Argument(help="A step's name or a pattern such as `child-*`: only these steps are cancelled.")
    ] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, for readers of the run.")] = "",
    as_json: Json = False,
) -> None:
    """Cancel a run or some of its steps. The process of the run prints the partial results."""
    with opened(as_json) as output:
        _steer(run, "prune" if step else "cancel", output, **({"step": step} if step else {}), reason=reason)


def pause(run: RunUnderWay = None, as_json: Json = False) -> None:
    """Start no new steps of a run; running steps continue."""
    with opened(as_json) as output:
        _steer(run, "pause", output)


def set_(
    name: Annotated[str, typer.Argument(help="A limit of a run (width, tokens, seconds, …), `slots` or `log_level`.")],
    value: Annotated[
        str, typer.Argument(help="A number, or `none` for no limit; debug, info, warning or error for `log_level`.")
    ],
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Id of the run whose limit it is; for slots and log_level a process id (default: all)."
        ),
    ] = None,
    worker: Annotated[str, typer.Option(metavar="NAME", help="Worker with these slots, of several.")] = "",
    as_json: Json = False,
) -> None:
    """Change a limit of a run, or the slots of a worker or the log level of running processes."""
    with opened(as_json) as output:
        if name not in ("slots", "log_level"):
            limit_of(name, value)  # refused before a run is looked for
            _steer(run, "limit", output, name=name, value=value)
            return
        done = [process["pid"] for peer, process, _ in processes() if run in (None, str(process["pid"]))
                for _ in peer.ask("set", name=name, value=value, worker=worker)]  # fmt: skip
        if not done:
            raise UsageError("no process of plait is running here" if run is None else f"no process {run} listens")
        output.report({"set": name, "value": value, "pids": done}, f"{name}={value} in {len(done)} processes")


def follow(run: str | None, as_json: bool) -> None:
    """Print a run's steps, questions and answer to its end; with `as_json` all its events, one object a line."""
    with opened(as_json) as output:
        for row in _follow(run):
            match row["kind"]:
                case "step":
                    reason = f": {row['reason']}" if row["reason"] else ""
                    output.report(row, f"{row['at']:8.2f} s  {row['name']} {row['state']}{reason}")
                case "ask":
                    output.report(row, f"asks {row['question']['id']}: {row['question']['text']}")
                case "answer":
                    output.report(row, f"{row['status']}: {row['answer']}")
                case _:
                    output.report(row)


def _follow(run: str | None) -> Iterator[dict[str, Any]]:
    where, name = _found(run, changes=False)
    if isinstance(where, Distant):
        yield from where.follow()
        return
    try:
        yield from where.ask("watch", None, run=name)
    except OSError:
        raise UsageError(f"the process of run {name} ended: `plait runs show {name[:8]}` shows its progress") from None

"""`plait runs cancel|pause|set`, and `show --follow`: follow and steer running runs from another process.

What can be done to a run are the rows of a table, `runtime/control/verbs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.control.socket import Peer, peers
from ...runtime.control.verbs import VERBS, Verb, limit_of
from ...runtime.journal.directory import match_run
from ...runtime.journal.location import Database
from ..common.options import Json
from ..common.output import Output, opened
from .distant import Distant, under_way

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
    """Cancel a run, whose process prints what was done, or some steps of it."""
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

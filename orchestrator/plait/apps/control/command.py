"""`plait runs top|watch|cancel|prune|pause|limit|set`: runs under way, seen and steered from another process.

What is done to a run is a verb of the table (`runtime/control/verbs.py`): its command is made of the table's row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.control.socket import Peer, peers
from ...runtime.control.verbs import VERBS, Verb, VerbArgument, limit_of
from ...runtime.journal.directory import match_run
from ...runtime.journal.location import Database
from ..common.options import Json
from ..common.output import Output, opened
from ..common.terminal import safe
from .distant import Distant, under_way

__all__ = ["RunUnderWay", "cancel", "find", "limit", "pause", "processes", "prune", "row_of", "set_", "steer",
           "store_of_settings", "watch"]  # fmt: skip

RunUnderWay = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's id or a unique prefix of it (at least 4 characters where the run is "
                   "changed); the only run under way if left out."),
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
    """Return the process of a run that is under way (or the run in the store) and its whole id; `None` if there is no
    such run. `run`: its id or a prefix; `None`: the only one. `changes`: whether it is then changed. Raises
    `UsageError` for an id that may mean several, is empty, or is too short to change a run."""
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
        raise UsageError(f"there is {which} under way here: `plait runs top` shows those that are")
    return under_way


def row_of(where: Peer | Distant, run: str) -> dict[str, Any]:
    """Return a run under way with all of its steps."""
    return where.show() if isinstance(where, Distant) else next(where.ask("show", run=run))


def steer(verb: Verb, where: Peer | Distant, run: str, **given: Any) -> None:
    """Do a verb to a run of another process. Raises `UsageError` if it is refused there."""
    if isinstance(where, Distant):
        verb.do(where, **given)
    else:
        list(where.ask(verb.name, run=run, **given))


def _command(verb: Verb) -> Callable[..., None]:
    """Return the command of a verb that is done to one run: RUN, what the verb needs, and options for the rest."""
    needs_run = any(argument.required for argument in verb.arguments)  # words after it: RUN cannot be left out

    def command(run: str | None, as_json: bool, **given: str) -> None:
        with opened(as_json) as output:
            if verb.name == "limit":
                limit_of(**given)  # refused before a run is looked for
            where, name = _found(run)
            steer(verb, where, name, **given)
            words = " ".join(given[argument.name] for argument in verb.arguments if argument.required)
            _say(
                output,
                {"run": name, "done": verb.name, **given},
                f"{' '.join(filter(None, (verb.name, words)))}: run {name}",
            )

    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__doc__ = verb.about
    parameters = [
        inspect.Parameter(
            "run", keyword, annotation=RunUnderWay, default=inspect.Parameter.empty if needs_run else None
        ),
        *(_parameter(argument) for argument in verb.arguments),
        inspect.Parameter("as_json", keyword, annotation=Json, default=False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(argument: VerbArgument) -> inspect.Parameter:
    info: Any = (
        typer.Argument(metavar=argument.name.upper(), help=argument.about)
        if argument.required
        else typer.Option(f"--{argument.name}", metavar="TEXT", help=argument.about)
    )
    default: Any = inspect.Parameter.empty if argument.required else ""
    return inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str, info],
                             default=default)  # fmt: skip


cancel, prune, pause, limit = (_command(VERBS[name]) for name in ("cancel", "prune", "pause", "limit"))


def _say(output: Output, row: dict[str, Any], words: str) -> None:
    if output.json:
        output.result(row)
    else:
        output.people.print(safe(words), soft_wrap=True, markup=False, highlight=False)


def watch(run: RunUnderWay = None, as_json: Json = False) -> None:
    """Follow a run to its end: steps that move, questions, the answer; with --json all news, one object a line."""
    with opened(as_json) as output:
        for row in _follow(run):
            if as_json:
                output.result(row)
            elif row["kind"] == "step":
                reason = f": {row['reason']}" if row["reason"] else ""
                _say(output, row, f"{row['at']:8.2f} s  {row['name']} {row['state']}{reason}")
            elif row["kind"] == "ask":
                _say(output, row, f"asks {row['question']['id']}: {row['question']['text']}")
            elif row["kind"] == "answer":
                _say(output, row, f"{row['status']}: {row['answer']}")


def _follow(run: str | None) -> Iterator[dict[str, Any]]:
    where, name = _found(run, changes=False)
    if isinstance(where, Distant):
        yield from where.follow()
        return
    try:
        yield from where.ask("watch", None, run=name)
    except OSError:
        raise UsageError(
            f"the process of run {name} ended: `plait runs show {name[:8]}` says how far it came"
        ) from None


def set_(
    name: Annotated[str, typer.Argument(help="slots or log_level.")],
    value: Annotated[str, typer.Argument(help="How many jobs at the same time; debug, info, warning or error.")],
    worker: Annotated[str, typer.Option(metavar="NAME", help="Whose slots, where there are several.")] = "",
    pid: Annotated[int | None, typer.Option(help="Of which process; all of this host by default.")] = None,
    as_json: Json = False,
) -> None:
    """Change the slots of a worker, or the log level, of running processes."""
    with opened(as_json) as output:
        done = [process["pid"] for peer, process, _ in processes() if pid in (None, process["pid"])
                for _ in peer.ask("set", name=name, value=value, worker=worker)]  # fmt: skip
        if not done:
            raise UsageError("no process of plait is running here" if pid is None else f"no process {pid} listens")
        _say(output, {"set": name, "value": value, "pids": done}, f"{name}={value} in {len(done)} processes")

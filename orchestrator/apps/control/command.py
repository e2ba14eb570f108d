"""`plait ctl`: list, show, follow and steer running runs of this host, from another terminal or program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.table import Table

from ...core.errors import UsageError
from ...runtime.client.config import Config
from ...runtime.journal.location import Database
from ..common.options import Json
from ..common.output import Output, opened
from .distant import Distant, under_way
from .socket import Peer, peers
from .verbs import limit

__all__ = ["app", "store_of_settings", "table"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, watch and steer running runs: those of this host, and those of the store that `journal` names.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_OF_PROCESSES = ("slots", "log_level")

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or as much of its beginning as no other's has.")]
OneRun = Annotated[str, typer.Argument(metavar="RUN", help="As above; it may be left out where only one runs.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why, for those who read the run.")]


def _all() -> Iterator[tuple[Peer, dict[str, Any], list[dict[str, Any]]]]:
    """Yield each process, what it is, and its runs. One that ends meanwhile is passed over."""
    for peer in peers():
        try:
            process = next(peer.ask("process"))
            yield peer, process, list(peer.ask("list"))
        except (OSError, StopIteration):
            continue


def store_of_settings() -> Database | None:
    """Return the store that the settings name, if they name one."""
    journal = Config.load().journal
    return journal if isinstance(journal, Database) else None


def _find(run: str) -> tuple[Peer | Distant, str]:
    """Return the process of a run, or the run in the store, and the run's whole id. Raises `UsageError`."""
    found = [(peer, row["run"]) for peer, _, rows in _all() for row in rows if row["run"].startswith(run)]
    exact = [pair for pair in found if pair[1] == run] or found
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise UsageError(f"{run!r} begins the ids of {len(exact)} runs: {', '.join(name for _, name in exact[:5])}")
    if (store := store_of_settings()) is not None:
        there = [row["run"] for row in under_way(store) if row["run"].startswith(run)]
        if len(there) == 1:
            return Distant.find(store, there[0]), there[0]
    raise UsageError(f"there is no run {run!r} under way here: `plait ctl list` shows those that are")


def _does(as_json: bool, run: str, verb: str, **fields: Any) -> None:
    with opened(as_json) as output:
        peer, name = _find(run)
        if isinstance(peer, Distant):
            peer.order(verb, **fields)
        else:
            list(peer.ask(verb, run=name, **fields))
        said = {"run": name, "done": verb, **fields}
        about = f" {fields['name']}={fields['value']}" if verb == "set" else ""
        _say(output, said, lambda: f"{verb}{about}: run {name}")


def _say(output: Output, row: dict[str, Any], words: Callable[[], str]) -> None:
    if output.json:
        output.result(row)
    else:
        output.people.print(words(), soft_wrap=True, markup=False, highlight=False)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the runs under way on this host."""
    with opened(as_json) as output:
        rows = [{**row, "pid": process["pid"]} for _, process, found in _all() for row in found]
        if (store := store_of_settings()) is not None:
            here = {row["run"] for row in rows}
            rows += [{**row, "pid": None} for row in under_way(store) if row["run"] not in here]
        if as_json:
            output.result({"runs": rows})
        elif not rows:
            output.people.print("no run is under way")
        else:
            output.people.print(table(rows))


def table(rows: list[dict[str, Any]]) -> Table:
    """Return runs as a table for people."""
    made = Table(box=None, pad_edge=False)
    for name in ("run", "pid", "status", "planner", "steps", "running", "tokens", "seconds", "asks", "text"):
        made.add_column(name, no_wrap=True, overflow="ellipsis", justify="left")
    for row in rows:
        made.add_row(
            *(row["run"][:8], str(row["pid"] or "store"), row["status"], row["planner"]),
            f"{row['done']}/{row['steps']}" if "steps" in row else "",
            *(str(row.get("running", "")), str(row["tokens"])),
            f"{row['seconds']:.1f}" if "seconds" in row else "",
            *(str(len(row.get("questions", ())) or ""), " ".join(row["text"].split())[:60]),
        )
    return made


@app.command()
def show(run: OneRun = "", as_json: Json = False) -> None:
    """Show one run with all of its steps."""
    with opened(as_json) as output:
        peer, name = _find(run)
        found = peer.show() if isinstance(peer, Distant) else next(peer.ask("show", run=name))
        if as_json:
            output.result(found)
            return
        head = f"run {name}: {found['status']}, {found['tokens']} tokens, {found['seconds']:.1f} s"
        output.people.print(f"{head}\n{found['text']}", markup=False, highlight=False)
        for each in found["questions"]:
            output.people.print(f"asks {each['id']}: {each['text']}", markup=False, highlight=False)
        for step in found["steps"]:
            line = f"  {step['name']} {step['state']}" + (f", {step['tokens']} tokens" if step["tokens"] else "")
            output.people.print(line + (f": {step['reason']}" if step["reason"] else ""), markup=False, highlight=False)


@app.command()
def events(run: OneRun = "", as_json: Json = False) -> None:
    """Print the news of a run as they come, one JSON object a line (with or without --json), to its end."""
    with opened(as_json) as output:
        for row in _follow(run):
            output.stream.write(json.dumps(row, ensure_ascii=True) + "\n")
            output.stream.flush()


@app.command()
def watch(run: OneRun = "", as_json: Json = False) -> None:
    """Follow a run for people: steps that move, and the answer."""
    with opened(as_json) as output:
        for row in _follow(run):
            if as_json:
                output.result(row)
            elif row["kind"] == "step":
                reason = f": {row['reason']}" if row["reason"] else ""
                output.people.print(f"{row['at']:8.2f} s  {row['name']} {row['state']}{reason}", markup=False,
                                    highlight=False)  # fmt: skip
            elif row["kind"] == "ask":
                output.people.print(f"asks {row['question']['id']}: {row['question']['text']}", markup=False)
            elif row["kind"] == "answer":
                output.people.print(f"{row['status']}: {row['answer']}", markup=False, highlight=False)


def _follow(run: str) -> Iterator[dict[str, Any]]:
    peer, name = _find(run)
    if isinstance(peer, Distant):
        yield from peer.follow()
        return
    try:
        yield from peer.ask("events", None, run=name)
    except OSError:
        raise UsageError(
            f"the process of run {name} ended: `plait runs show {name[:8]}` says how far it came"
        ) from None


@app.command()
def cancel(run: OneRun = "", reason: Reason = "", as_json: Json = False) -> None:
    """Give a run up; its process prints what was done."""
    _does(as_json, run, "cancel", reason=reason)


@app.command()
def prune(
    run: Run,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's name, as `show` has it.")],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Give one step up; its run goes on without it."""
    _does(as_json, run, "prune", step=step, reason=reason)


@app.command()
def pause(run: OneRun = "", as_json: Json = False) -> None:
    """Start nothing more of a run; what runs goes on."""
    _does(as_json, run, "pause")


@app.command()
def resume(run: OneRun = "", as_json: Json = False) -> None:
    """Start steps again after `pause`."""
    _does(as_json, run, "resume")


@app.command()
def answer(
    run: Run,
    value: Annotated[str, typer.Argument(help="The answer; read as JSON if it is JSON.")],
    question: Annotated[str, typer.Option(metavar="ID", help="Which question, where several are open.")] = "",
    as_json: Json = False,
) -> None:
    """Answer a question that a tool of the run has put."""
    try:
        said = json.loads(value)
    except ValueError:
        said = value
    _does(as_json, run, "answer", question=question, value=said)


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="width, tokens, seconds, … of a run's budget; slots; log_level.")],
    value: Annotated[str, typer.Argument(help="`none` takes a limit away.")],
    run: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Whose limit; it may be left out where only one runs.")
    ] = "",
    worker: Annotated[str, typer.Option(metavar="NAME", help="Whose slots, where there are several.")] = "",
    pid: Annotated[int | None, typer.Option(help="Of which process (slots, log_level); all by default.")] = None,
    as_json: Json = False,
) -> None:
    """Change a limit of a running run, the slots of a worker, or the log level of running processes."""
    if name not in _OF_PROCESSES:
        limit(name, value)  # refused before a run is looked for
        _does(as_json, run, "set", name=name, value=value)
        return
    with opened(as_json) as output:
        done = [process["pid"] for peer, process, _ in _all() if pid in (None, process["pid"])
                for _ in peer.ask("set", name=name, value=value, worker=worker)]  # fmt: skip
        if not done:
            raise UsageError("no process of plait is running here" if pid is None else f"no process {pid} listens")
        _say(output, {"set": name, "value": value, "pids": done}, lambda: f"{name}={value} in {len(done)} processes")

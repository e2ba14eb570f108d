"""`plait job`: submits a `plait` command to a running Ray cluster as a job, and brings back its log and files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from ...core.errors import UsageError, WorkerError
from ..common.files import write_private
from ..common.options import Json
from ..common.output import Output, cancellable, opened
from .log_files import new_key, split_log
from .manifest import manifest
from .words import job_words

__all__ = ["app"]

DEFAULT = "http://127.0.0.1:8265"
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_KEY = "plait_key"
_WITHOUT_KEY = re.compile(r" --key [0-9a-f]+")
_SECONDS = 0.5
_PATIENCE = 20
"""Seconds that a new cluster has to get ready for a job."""

Address = Annotated[
    str | None,
    typer.Option(metavar="URL", help=f"Of the cluster's dashboard; RAY_API_SERVER_ADDRESS or {DEFAULT} if left out."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="What `plait job submit` printed.")]


def submit(
    context: typer.Context,
    address: Address = None,
    keep: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file that the command writes, to be brought back; repeatable."),
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Uploaded, and the folder that the command runs in.")
    ] = None,
    name: Annotated[str | None, typer.Option("--id", metavar="ID", help="Of the job; made up if left out.")] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="On the cluster; this one for a cluster on this machine.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show its log until it is over.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a command: `plait job submit -- eval countdown --count 200 --engines 2 --json`."""
    words = job_words(context.args, "submit", "plait job submit -- run 'What is asked'")
    names = [path.name for path in keep or ()]
    if len(set(names)) < len(names):
        raise UsageError("two files of --keep have the same name, and they come back into one folder: rename one")
    key = new_key()
    entry = [python or _python(_address(address)), "-m", "plait.apps.jobs.entry", "--key", key]
    entry += [word for path in keep or () for word in ("--keep", str(path))]
    entry += [] if working_dir is None else ["--here"]
    options: dict[str, Any] = {"entrypoint": shlex.join([*entry, "--", *words]), "metadata": {_KEY: key}}
    if working_dir is not None:
        if not working_dir.is_dir():
            raise UsageError(f"--working-dir {working_dir} is no folder")
        options["runtime_env"] = {"working_dir": str(working_dir)}
    if name is not None:
        options["submission_id"] = name
    with opened(as_json) as output:
        with _cluster(address) as client:
            made = _submitted(client, options)
            output.progress.print(f"submitted {made}", markup=False)
            code = _follow(client, made, output) if follow else 0
        if as_json:
            output.result({"job": made, "command": shlex.join(["plait", *words])})
        elif not follow:
            output.stream.write(made + "\n")
    if code:
        raise typer.Exit(code)


def _submitted(client: Any, options: dict[str, Any]) -> str:
    """Submit a job and return its id. A cluster that has only just started has nobody yet to run it on."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.submit_job(**options)
        except RuntimeError as error:
            if "No available agent" not in str(error):
                raise
            if time.monotonic() > end:
                raise WorkerError(
                    "No available agent: the cluster has nobody to run a job on, for its dashboard agent did not "
                    "start. Perhaps another Ray on that machine has its port: `ray start "
                    "--dashboard-agent-listen-port=PORT` gives it another"
                ) from None
            time.sleep(1.0)


def status(job: Id, address: Address = None, as_json: Json = False) -> None:
    """Say how a job stands."""
    with opened(as_json) as output, _cluster(address) as client:
        info = _told(client.get_job_info(job))
        if as_json:
            output.result(info)
        else:
            output.people.print(f"{job}: {info['status'].lower()}, {info['seconds']:.0f} s", markup=False)
            output.people.print(f"  {info['entrypoint']}\n  {info['message']}".rstrip(), markup=False, soft_wrap=True)


def logs(
    job: Id,
    address: Address = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it is over.")] = False,
) -> None:
    """Print a job's log, without the files in it."""
    with opened(False) as output, _cluster(address) as client:
        if follow:
            _follow(client, job, output)
            return
        rest, _ = split_log(_lines(client.get_job_logs(job)), _key(client, job))
        output.stream.write("".join(rest))


def result(
    job: Id,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the kept files go.")] = Path(),
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Bring back the files that a job was to keep."""
    with opened(as_json) as output, _cluster(address) as client:
        info = _told(client.get_job_info(job))
        _, files = split_log(_lines(client.get_job_logs(job)), _key(client, job))
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_private(out / name, content)
        if as_json:
            output.result({"job": job, "status": info["status"], "files": [str(out / name) for name in files]})
        for name, content in files.items() if not as_json else ():
            output.people.print(f"{out / name} ({len(content):,} bytes)", markup=False, soft_wrap=True)
        if not files:
            state = info["status"].lower()
            output.progress.print(f"no file came back from {job} ({state}): submit it with --keep FILE", markup=False)
    if not files:
        raise typer.Exit(1)


def cancel(job: Id, address: Address = None) -> None:
    """Stop a job."""
    with opened(False) as output, _cluster(address) as client:
        stopped = client.stop_job(job)
        output.people.print(f"{job}: {'asked to stop' if stopped else 'was over already'}", markup=False)


def listing(address: Address = None, as_json: Json = False) -> None:
    """List the cluster's jobs."""
    with opened(as_json) as output, _cluster(address) as client:
        jobs = [_told(each) for each in client.list_jobs() if each.submission_id]
        if as_json:
            output.result({"jobs": jobs})
        for each in jobs if not as_json else ():
            output.people.print(f"{each['job']}  {each['status'].lower():9}  {each['entrypoint']}", markup=False,
                                no_wrap=True, overflow="ellipsis")  # fmt: skip


def _key(client: Any, job: str) -> str:
    """Return the key that a job's files are signed with; empty for a job that plait did not submit."""
    return str((getattr(client.get_job_info(job), "metadata", None) or {}).get(_KEY, ""))


def _lines(text: str) -> list[str]:
    """Cut a log at its line ends alone: a model's text may hold other signs that `splitlines` cuts at."""
    return text.splitlines(keepends=True) if text.isascii() else io.StringIO(text, newline="\n").readlines()


def _told(info: Any) -> dict[str, Any]:
    began, ended = info.start_time or 0, info.end_time or int(time.time() * 1000)
    return {
        "job": info.submission_id,
        "status": str(getattr(info.status, "value", info.status)),
        "message": info.message or "",
        "entrypoint": _WITHOUT_KEY.sub("", info.entrypoint),
        "seconds": max(0, ended - began) / 1000 if began else 0.0,
    }


def _follow(client: Any, job: str, output: Output) -> int:
    """Write the log as it grows, and return the exit code that the job's end stands for."""

    key = _key(client, job)

    async def tail() -> None:
        held = ""  # a line may come in several pieces
        async for text in client.tail_job_logs(job):
            whole, newline, held = (held + text).rpartition("\n")
            rest, _ = split_log(_lines(whole + newline), key)
            output.stream.write("".join(rest))
            output.stream.flush()
        output.stream.write("".join(split_log([held], key)[0]))

    asyncio.run(tail())
    while (state := _told(client.get_job_info(job))["status"]) not in _OVER:  # the log's end comes a little before
        time.sleep(_SECONDS)
    return 0 if state == "SUCCEEDED" else 1


def _address(given: str | None) -> str:
    found = given or os.environ.get("RAY_API_SERVER_ADDRESS") or DEFAULT
    return found if "://" in found else f"http://{found}"


def _python(address: str) -> str:
    local = urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")
    return sys.executable if local else "python"


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Yield a client of the cluster's Jobs API; what goes wrong becomes a `WorkerError` that says what to do."""
    where = _address(address)
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray").setLevel(logging.WARNING)
        yield JobSubmissionClient(where)
    except ImportError as error:
        raise WorkerError(f"Ray's Jobs API is not installed ({error}): pip install 'plait[job]'") from None
    except ConnectionError:
        raise WorkerError(
            f"no Ray cluster answers at {where}: start one with `ray start --head`, or give --address"
        ) from None
    except (typer.Exit, UsageError):
        raise
    except Exception as error:
        text = str(error)
        if "ray[default]" in text:  # how a Ray without that extra says it
            raise WorkerError("Ray's Jobs API is not installed: pip install 'plait[job]'") from None
        if "uthentication" in type(error).__name__ + text[:200]:
            raise WorkerError(
                f"the cluster at {where} wants a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it is not this "
                "user's own"
            ) from None
        if "does not exist" in text:
            raise UsageError(f"the cluster at {where} has no such job: `plait job list` lists them") from None
        if isinstance(error, RuntimeError) and "Request failed" in text:
            raise WorkerError(f"the cluster at {where} refused: {_last_line(text)}") from None
        raise


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip(" .\"'}")]
    return lines[-1] if lines else "without a reason"


app = typer.Typer(
    help="Run plait commands as jobs on a Ray cluster.", no_args_is_help=True, pretty_exceptions_enable=False
)
_SUBMITTED = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("submit", context_settings=_SUBMITTED)(cancellable(submit))
app.command("manifest", context_settings=_SUBMITTED)(cancellable(manifest))
for _name, _command in {"status": status, "logs": logs, "result": result, "cancel": cancel, "list": listing}.items():
    app.command(_name)(cancellable(_command))

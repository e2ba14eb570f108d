"""`plait job submit`: a plait command as a job of a Ray cluster; `plait job manifest`: as a RayJob of Kubernetes.

Ray's own `ray job logs|status|stop|list` do the rest. These two do what Ray cannot: they refuse a command that plait
would refuse, before anything starts, and quote its words for the shell there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from ..core.errors import ConfigError, UsageError, WorkerError
from .common.options import Json
from .common.output import Output, opened
from .main import check_words

__all__ = ["manifest", "submit"]

_ADDRESS = "http://127.0.0.1:8265"
_PATIENCE = 20
"""Seconds that a new cluster has to get ready for a job."""
_DATA = "/data"
_NAME = r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?"
"""KubeRay makes names of services out of it, which have at most 63 characters."""
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|[EPTGMk]i?)?"


def submit(
    context: typer.Context,
    address: Annotated[
        str, typer.Option(metavar="URL", envvar="RAY_API_SERVER_ADDRESS", help="Of the cluster's dashboard.")
    ] = _ADDRESS,
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
    words = _words(context.args, "plait job submit -- run 'What is asked'")
    if working_dir is not None and not working_dir.is_dir():
        raise UsageError(f"--working-dir {working_dir} is no folder")
    address = address if "://" in address else f"http://{address}"
    local = urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")
    options: dict[str, Any] = {
        "entrypoint": shlex.join([python or (sys.executable if local else "python"), "-m", "plait", *words]),
        "submission_id": name,
        "runtime_env": None if working_dir is None else {"working_dir": str(working_dir)},
    }
    with opened(as_json) as output:
        client = _client(address)
        job = _submitted(client, options)
        output.progress.print(f"submitted {job}: `ray job logs --follow {job}` shows what it says", markup=False)
        code = _follow(client, job, output) if follow else 0
        if as_json:
            output.result({"job": job, "command": shlex.join(["plait", *words])})
        elif not follow:
            output.stream.write(job + "\n")
    if code:
        raise typer.Exit(code)


def _words(given: Sequence[str], example: str) -> list[str]:
    """Return the words of a command that can be a job. Raises `UsageError` for one that plait would refuse there."""
    words = list(given)
    if not words:
        raise UsageError(f"there is no command to run: {example}")
    if words[0] in ("job", "repl"):  # one needs a terminal, the other would submit from within
        raise UsageError(f"`plait {words[0]}` is no job: run, eval or batch is")
    check_words(words)
    return words


def _client(address: str) -> Any:
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray").setLevel(logging.WARNING)
        return JobSubmissionClient(address)
    except ConnectionError:
        raise WorkerError(
            f"no Ray cluster answers at {address}: start one with `ray start --head`, or give --address"
        ) from None
    except (ImportError, RuntimeError) as error:  # a Ray without its extra raises the second
        if isinstance(error, RuntimeError) and "ray[default]" not in str(error):
            raise WorkerError(f"the cluster at {address} refused: {error}") from None
        raise WorkerError("Ray's Jobs API is not installed: pip install 'plait[job]'") from None


def _submitted(client: Any, options: dict[str, Any]) -> str:
    """Submit a job and return its id. A cluster that has only just started has nobody yet to run it on."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return client.submit_job(**options)
        except RuntimeError as error:
            if "No available agent" not in str(error):
                raise WorkerError(f"the cluster refused the job: {error}") from None
            if time.monotonic() > end:
                raise WorkerError(
                    "No available agent: the cluster has nobody to run a job on, for its dashboard agent did not "
                    "start. Perhaps another Ray on that machine has its port: `ray start "
                    "--dashboard-agent-listen-port=PORT` gives it another"
                ) from None
            time.sleep(1.0)


def _follow(client: Any, job: str, output: Output) -> int:
    """Write the log as it grows, and return the exit code that the job's end stands for."""

    async def tail() -> None:
        async for text in client.tail_job_logs(job):
            output.stream.write(text)
            output.stream.flush()

    asyncio.run(tail())
    while not (status := client.get_job_status(job)).is_terminal():  # the log's end comes a little before
        time.sleep(0.5)
    return 0 if status == "SUCCEEDED" else 1


def manifest(
    context: typer.Context,
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Has plait and Ray.")],
    name: Annotated[str, typer.Option(help="Of the job; small letters, digits and dashes.")] = "plait",
    namespace: Annotated[str | None, typer.Option(help="Of Kubernetes; kubectl's by default.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Nodes beside the head.")] = 1,
    cpus: Annotated[str, typer.Option(metavar="N", help="CPUs of a node, such as 8 or 500m.")] = "4",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of a node.")] = "16Gi",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a node beside the head.")] = 0,
    claim: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="PersistentVolumeClaim (ReadWriteMany) of the folder that it runs in."),
    ] = None,
    secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="A Secret whose keys become variables: keys of servers.")
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a job that failed is begun again.")] = 0,
    seconds: Annotated[int | None, typer.Option(min=1, help="Most seconds for all of it.")] = None,
) -> None:
    """Write a command as a RayJob of KubeRay, which starts a Ray cluster for it and removes that afterwards.

    Example: `plait job manifest --image plait -- batch in.jsonl --out out.jsonl | kubectl apply -f -`.
    """
    words = _words(context.args, "plait job manifest --image IMAGE -- run 'What is asked'")
    if importlib.util.find_spec("yaml") is None:
        raise ConfigError("manifests need PyYAML, which comes with Ray: pip install 'plait[job]'")
    import yaml

    for option, value in (("name", name), ("namespace", namespace), ("claim", claim), ("secret", secret)):
        if value is not None and not re.fullmatch(_NAME, value):
            raise UsageError(f"--{option} {value!r} is no name: small letters, digits and dashes, at most 47")
    for option, value in (("cpus", cpus), ("memory", memory)):
        if not re.fullmatch(_QUANTITY, value):
            raise UsageError(f"--{option} {value!r} is no quantity of Kubernetes: write 4, 500m or 16Gi")

    def pod(container: str, extra: dict[str, Any]) -> dict[str, Any]:
        room = {"cpu": cpus, "memory": memory}
        made: dict[str, Any] = {"name": container, "image": image,
                                "resources": {"requests": room, "limits": {**room, **extra}}}  # fmt: skip
        spec: dict[str, Any] = {"containers": [made]}
        if secret is not None:
            made["envFrom"] = [{"secretRef": {"name": secret}}]
        if claim is not None:
            made["volumeMounts"] = [{"name": "data", "mountPath": _DATA}]
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        return {"spec": spec}

    cluster: dict[str, Any] = {
        **_ray_version(),
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": pod("ray-head", {})},
    }
    if workers:
        counts = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), workers)
        template = pod("ray-worker", {"nvidia.com/gpu": gpus} if gpus else {})
        cluster["workerGroupSpecs"] = [{"groupName": "workers", **counts, "rayStartParams": {}, "template": template}]
    command = shlex.join(["plait", *words])
    made = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "entrypoint": f"sh -c {shlex.quote(f'cd {_DATA} && {command}')}" if claim is not None else command,
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": retries,
            **({"activeDeadlineSeconds": seconds} if seconds else {}),
            "rayClusterSpec": cluster,
        },
    }
    sys.stdout.write(yaml.safe_dump(made, sort_keys=False, width=1000))


def _ray_version() -> dict[str, str]:
    """Return the field that says which Ray the image has, which is taken to be the one that is installed here."""
    try:
        return {"rayVersion": version("ray")}
    except PackageNotFoundError:
        return {}

"""`plait job manifest`: a command as a RayJob of KubeRay, which starts a Ray cluster for it on Kubernetes, and removes
that afterwards."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from ...core.errors import ConfigError, UsageError
from .words import job_words

__all__ = ["manifest", "ray_job"]

_DATA = "/data"
_NAME = r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?"
"""KubeRay makes names of services out of it, which have at most 63 characters."""
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|[EPTGMk]i?)?"


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
    """Write a command as a RayJob: `plait job manifest --image plait -- batch in.jsonl --out out.jsonl | kubectl apply
    -f -`."""
    words = job_words(context.args, "write", "plait job manifest --image IMAGE -- run 'What is asked'")
    if importlib.util.find_spec("yaml") is None:
        raise ConfigError("manifests need PyYAML, which comes with Ray: pip install 'plait[job]'")
    import yaml

    made = ray_job(words, image, name=name, namespace=namespace, workers=workers, cpus=cpus, memory=memory, gpus=gpus,
                   claim=claim, secret=secret, retries=retries, seconds=seconds)  # fmt: skip
    sys.stdout.write(yaml.safe_dump(made, sort_keys=False, width=1000))


def ray_job(
    words: list[str],
    image: str,
    *,
    name: str = "plait",
    namespace: str | None = None,
    workers: int = 1,
    cpus: str = "4",
    memory: str = "16Gi",
    gpus: int = 0,
    claim: str | None = None,
    secret: str | None = None,
    retries: int = 0,
    seconds: int | None = None,
) -> dict[str, Any]:
    """Return the manifest of a job that runs `plait WORDS`. Raises `UsageError` for names that Kubernetes refuses."""
    for option, value in (("name", name), ("namespace", namespace), ("claim", claim), ("secret", secret)):
        if value is not None and not re.fullmatch(_NAME, value):
            raise UsageError(f"--{option} {value!r} is no name: small letters, digits and dashes, at most 47")
    for option, value in (("cpus", cpus), ("memory", memory)):
        if not re.fullmatch(_QUANTITY, value):
            raise UsageError(f"--{option} {value!r} is no quantity of Kubernetes: write 4, 500m or 16Gi")
    room = {"cpu": cpus, "memory": memory}

    def pod(container: str, extra: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": container,
            "image": image,
            "resources": {"requests": dict(room), "limits": {**room, **extra}},
        }
        spec: dict[str, Any] = {"containers": [made]}
        if secret is not None:
            made["envFrom"] = [{"secretRef": {"name": secret}}]
        if claim is not None:
            made["volumeMounts"] = [{"name": "data", "mountPath": _DATA}]
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        return {"spec": spec}

    command = shlex.join(["plait", *words])
    cluster: dict[str, Any] = {
        **_ray_version(),
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": pod("ray-head", {})},
    }
    if workers:
        group = {"groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers,
                 "rayStartParams": {}}  # fmt: skip
        gpu = {"nvidia.com/gpu": gpus} if gpus else {}
        cluster["workerGroupSpecs"] = [{**group, "template": pod("ray-worker", gpu)}]
    return {
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


def _ray_version() -> dict[str, str]:
    """Return the field that says which Ray the image has, which is taken to be the one that is installed here."""
    try:
        return {"rayVersion": version("ray")}
    except PackageNotFoundError:
        return {}

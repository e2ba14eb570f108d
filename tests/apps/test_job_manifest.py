"""`plait job manifest`: what Kubernetes is given, checked by its own schemas as far as they are published."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from .conftest import Plait


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())]
    return [group["template"]["spec"] for group in groups]


def test_a_command_becomes_a_ray_job(plait: Plait) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    words = ("batch", "in.jsonl", "--out", "out put.jsonl", "--actors", "1")
    cluster = "workers=2,gpus=1,claim=data,secret=keys,retries=3"
    done = plait("job", "manifest", "--cluster", f"image=plait:1,{cluster}", "--seconds", "600", "--", *words)
    assert done.code == 0, done.err
    job = yaml.safe_load(done.out)
    assert "&id" not in done.out
    spec = job["spec"]
    shell, option, line = shlex.split(spec["entrypoint"])
    assert (shell, option) == ("sh", "-c")
    assert shlex.split(line) == ["cd", "/data", "&&", "plait", *words]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["shutdownAfterJobFinishes"]) == (3, 600, True)
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] == group["replicas"] == group["maxReplicas"] == 2
    head, worker = pods(job)
    assert "nvidia.com/gpu" not in head["containers"][0]["resources"]["limits"]
    assert worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    for place, each in enumerate((head, worker)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{place}"}, "spec": each}
        kubernetes_validate.validate(pod, "1.34", strict=True)


def test_without_a_claim_the_command_stands_as_it_is(plait: Plait) -> None:
    done = plait("job", "manifest", "--cluster", "image=plait:1,workers=0", "--", "run", "What is 6 x 7?")
    job = yaml.safe_load(done.out)
    assert shlex.split(job["spec"]["entrypoint"]) == ["plait", "run", "What is 6 x 7?"]
    assert "workerGroupSpecs" not in job["spec"]["rayClusterSpec"] and "volumes" not in pods(job)[0]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "no command"),
        (("--name", "A b", "--", "run", "x"), "'A b' is not a name"),
        (("--cluster", "image=plait:1,memory=16 GB", "--", "run", "x"), "memory='16 GB' is invalid"),
        (("--cluster", "image=plait:1,clam=data", "--", "run", "x"), "did you mean 'claim'"),
        (("--", "repl"), "is no job"),
        (("--", "run", "--nope"), "--nope"),
    ],
)
def test_what_makes_no_sense_is_refused(plait: Plait, words: tuple[str, ...], part: str) -> None:
    cluster = () if "--cluster" in words else ("--cluster", "image=plait:1")
    done = plait("job", "manifest", *cluster, *words)
    assert done.code == 2 and part in done.err and not done.out


JOB = {
    "entrypoint": str, "submissionMode": str, "shutdownAfterJobFinishes": bool, "ttlSecondsAfterFinished": int,
    "backoffLimit": int, "activeDeadlineSeconds": int, "rayClusterSpec": dict,
}  # fmt: skip
CLUSTER = {"rayVersion": str, "headGroupSpec": dict, "workerGroupSpecs": list}
GROUP = {
    "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "rayStartParams": dict, "template": dict,
}  # fmt: skip
"""Fields of `RayJobSpec`, `RayClusterSpec` and `WorkerGroupSpec` in KubeRay's ray.io/v1 that a manifest has, as its
types declare them. No package registry has the resource definition itself."""


def test_the_fields_of_a_ray_job_are_those_that_kuberay_declares(plait: Plait) -> None:
    words = ("--cluster", "image=plait:1,workers=2,retries=1", "--seconds", "9", "--", "run", "x")
    done = plait("job", "manifest", *words)
    spec = yaml.safe_load(done.out)["spec"]
    cluster = spec["rayClusterSpec"]
    head = cluster["headGroupSpec"]
    for given, known in ((spec, JOB), (cluster, CLUSTER), *((each, GROUP) for each in cluster["workerGroupSpecs"])):
        assert {name: type(value) for name, value in given.items()} == {name: known.get(name) for name in given}
    assert set(head) == {"rayStartParams", "template"}, "replicas of the head are none of its fields"
    assert all(isinstance(value, str) for value in head["rayStartParams"].values())
    assert spec["submissionMode"] in ("K8sJobMode", "HTTPMode", "InteractiveMode")

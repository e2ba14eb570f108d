"""The files in deploy/: they are well formed, and the options that they use are those of the commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import plait
from plait.apps.main import check_words
from plait_server.settings import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
CHART = DEPLOY / "helm/plait"
PROGRAMS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
HELM = os.environ.get("HELM") or shutil.which("helm", path=PROGRAMS)
HADOLINT = shutil.which("hadolint", path=PROGRAMS)
KUBERNETES = "1.34"


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def table(text: str, folder: Path) -> Settings:
    """The settings of a plait.toml."""
    (folder / "plait.toml").write_text(text)
    return Settings.load(folder / "plait.toml")


def test_every_file_can_be_read() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and "templates" not in path.parts]
    assert len(files) > 8
    for path in files:
        match path.suffix:
            case ".yaml":
                assert loaded(path), path
            case ".json":
                json.loads(path.read_text())
            case ".toml":
                tomllib.loads(path.read_text())
            case "":
                assert path.name == "Containerfile"
            case _:
                pytest.fail(f"nobody reads {path}")


def test_the_image_runs_the_command_with_extras_that_there_are() -> None:
    said = (DEPLOY / "Containerfile").read_text()
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", said, re.M)[0])
    words = json.loads(re.findall(r"^CMD (.*)$", said, re.M)[0])
    assert entry == ["plait"]
    check_words(words)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (default,) = re.findall(r"^ARG EXTRAS=(.*)$", said, re.M)
    assert set(default.split(",")) <= set(extras)
    assert "--constraint requirements-dev.lock" in said
    server = tomllib.loads((ROOT / "packages/plait-server/pyproject.toml").read_text())["project"]["dependencies"]
    needed = [each for extra in default.split(",") for each in extras[extra]] + server
    names = {re.split(r"[\s\[<>=!~;]", each)[0] for each in needed}
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements-dev.lock").read_text(), re.M)
    assert {name for name in names if not name.startswith("plait")} <= set(locked)


def test_the_services_of_compose_find_one_another(tmp_path: Path) -> None:
    made = loaded(COMPOSE / "compose.yaml")
    services = made["services"]
    words = services["plait"]["command"]
    check_words(words)
    for url in [each for each in words if "://" in each]:
        host = re.sub(r"^\w+://(\w+@)?", "", url).split("/")[0].split(":")[0]
        assert host in services, url
    table((COMPOSE / "plait.toml").read_text(), tmp_path)
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services)
        for waited, how in dict(service["depends_on"]).items() if isinstance(service.get("depends_on"), dict) else ():
            assert how["condition"] != "service_healthy" or "healthcheck" in services[waited], name
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            assert (COMPOSE / source).is_file() if source.startswith(".") else source in made["volumes"], volume
            assert target.startswith("/")
    assert (COMPOSE / services["plait"]["build"]["context"] / services["plait"]["build"]["dockerfile"]).is_file()
    targets = [
        target
        for job in loaded(COMPOSE / "prometheus.yaml")["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    assert {target.split(":")[0] for target in targets} == {"plait", "vllm"}
    port = Settings().port
    assert f"plait:{port}" in targets and services["plait"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_the_application_of_ray_serve_is_one() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    from plait_server import ray_serve

    made = schema.ServeDeploySchema.model_validate(loaded(DEPLOY / "ray-serve.yaml"))
    (application,) = made.applications
    assert application.import_path == f"{ray_serve.__name__}:{ray_serve.app.__name__}"
    assert ray_serve.DeployArguments(**application.args).max_replicas == 8


def test_the_values_of_the_chart_are_those_of_its_schema(tmp_path: Path) -> None:
    values, schema = loaded(CHART / "values.yaml"), json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    assert set(values) == set(schema["properties"]) - {"global"}
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate({**values, "replica": 2}, schema)
    table(values["config"], tmp_path)
    assert values["drainSeconds"] == Settings().drain_seconds
    assert loaded(CHART / "Chart.yaml")["appVersion"] == plait.__version__
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.(\w+)", templates))
    assert used == set(values), "a value that no template uses, or the other way round"
    words = re.findall(r"^            - (--[a-z-]+)$", templates, re.M)
    assert set(words) == {"--host", "--config", "--upstream", "--journal"}
    for word in words:
        check_words(["serve", word, "0.0.0.0"])


@pytest.mark.skipif(HADOLINT is None, reason="there is no hadolint for this platform")
def test_the_containerfile_has_no_finding_of_its_linter() -> None:
    said = subprocess.run([str(HADOLINT), str(DEPLOY / "Containerfile")], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, "")


def rendered(*options: str) -> list[dict[str, Any]]:
    """The manifests that helm makes of the chart. Fails where helm does."""
    command = [str(HELM), "template", "plait", str(CHART), *options]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return [each for each in yaml.safe_load_all(said.stdout) if each]


SCALED = ("--set", "autoscaling.enabled=true,journal=postgresql://plait@db/plait")


@pytest.mark.skipif(HELM is None, reason="there is no helm; HELM names one")
def test_replicas_are_scaled_by_the_model_steps_that_wait() -> None:
    metric = "plait_model_steps_waiting"
    (scaler,) = [each for each in rendered(*SCALED) if each["kind"] == "HorizontalPodAutoscaler"]
    assert [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]] == [metric]
    (scaler,) = [each for each in rendered(*SCALED, "--set", "autoscaling.kind=keda") if each["kind"] == "ScaledObject"]
    (trigger,) = scaler["spec"]["triggers"]
    assert metric in trigger["metadata"]["query"] and trigger["metricType"] == "AverageValue"
    assert metric in (ROOT / "packages/plait-server/plait_server/metrics.py").read_text(), "the server has the metric"


@pytest.mark.skipif(HELM is None, reason="there is no helm; HELM names one")
def test_what_the_chart_makes_is_what_kubernetes_takes() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    full = ("--set", "autoscaling.enabled=true,journal=postgresql://plait@db/plait,ingress.enabled=true,secret=keys",
            "--set", "ingress.tlsSecret=tls,ingress.className=nginx,serviceMonitor.enabled=true",
            "--set", "serviceMonitor.keySecret=admin,upstreams={http://a/v1,http://b/v1}",
            "--set", "extraEnv[0].name=OTEL_SERVICE_NAME,extraEnv[0].value=a,podAnnotations.a=b",
            "--set", "topologySpreadConstraints[0].topologyKey=zone,topologySpreadConstraints[0].maxSkew=1",
            "--set", "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway")  # fmt: skip
    for options, kinds in (((), 3), (full, 7)):
        found = rendered(*options)
        assert len(found) == kinds
        for each in found:
            if each["kind"] != "ServiceMonitor":  # is not Kubernetes' own
                kubernetes_validate.validate(each, KUBERNETES, strict=True)
        (deployment,) = [each for each in found if each["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        check_words(container["args"])
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {"/tmp", "/var/lib/plait"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"].count("--upstream") == 2
    failed = subprocess.run([str(HELM), "template", "x", str(CHART), "--set", "replicas=3"], capture_output=True,
                            text=True, check=False)  # fmt: skip
    assert failed.returncode and "several replicas need `journal`" in failed.stderr

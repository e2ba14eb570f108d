"""What every test shares: fixed seeds for hypothesis, no telemetry, no network hub, and the checkout's root.

Knows nothing of what is tested; fixtures of one area stand in that area's folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from .missing_engines import pytest_make_collect_report  # noqa: F401  (a hook)
from .one_engine import (  # noqa: F401  (hooks)
    pytest_collection_finish,
    pytest_collection_modifyitems as own_engines_first,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
)

# Before any test imports an engine: nothing is fetched or reported. torch reads the last one while it is imported, and
# some tests import it before an engine could set it.
os.environ.update(HF_HUB_OFFLINE="1", RAY_USAGE_STATS_ENABLED="0", VLLM_NO_USAGE_STATS="1", TORCH_CPP_LOG_LEVEL="ERROR")


# Runs are written down by default: not into the home of whoever runs the tests. Of several processes (`-n`) each has a
# folder of its own within that of the first, which alone ends in an orderly way.
_above = os.environ["XDG_STATE_HOME"] if "PYTEST_XDIST_WORKER" in os.environ else None
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="plait-state-", dir=_above)
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Nor do the tests' processes listen where `plait runs` looks for those of the user. Each of several processes (`-n`)
# has a folder of its own here too: the only running run is then one of the same test process.
_above = os.environ["XDG_RUNTIME_DIR"] if "PYTEST_XDIST_WORKER" in os.environ else None
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="plait-run-" if _above is None else "", dir=_above)
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

# `ci` gives the same examples at every run. `HYPOTHESIS_PROFILE=nightly` looks further, with new ones each time. No
# test has settings of its own: they would override both. A slow machine fails nothing, so there is no deadline.
settings.register_profile(
    "ci",
    max_examples=50,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", settings.get_profile("ci"), derandomize=False, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(trylast=True)  # after pytest has put those side by side that share a fixture
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that stand here: they build wheels, run commands of the documents and examples, and take the
    longest. Of several processes none is left with one of them at the end."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    own_engines_first(items)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Callable[..., None]]:
    """Connect this process to a local Ray cluster of four CPUs, which the tests share, for a start takes seconds.

    `gpus`: how many the cluster has as it counts them (nothing computes there); left out, any number will do.
    """
    started: list[int] = []

    def connect(gpus: int | None = None) -> None:
        import ray

        if ray.is_initialized():
            if gpus in (None, *started[-1:]):
                return
            ray.shutdown()
        started.append(gpus or 0)
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            num_cpus=4,
            num_gpus=started[-1],
        )

    yield connect
    if started:
        import ray

        ray.shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: the cores that this process may use; each worker takes up to 0.7 GB."""
    return min(8, len(os.sched_getaffinity(0)))

"""What does an engine's or a node's death cost: answers, and tokens that are generated a second time?

What an engine's or a node's death costs: answers, and tokens that are generated a second time.

Forty puzzles by threads (greedy, no early stop), 32 in flight on two engines, are run undisturbed and then with one
engine killed (SIGKILL) at a random moment, ten times; then on a local cluster of two nodes with one of the nodes
killed. Every engine writes what it has sampled to a file between its steps, so that a dead one's count may lack those
of its last two. Repeated: tokens sampled and in no answer ÷ those of the undisturbed run, whose length alone says
little: a step that continues in another batch may round otherwise and take another way.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator
from plait.apps.common.interrupt import descendants
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.workers.engine import Engine
from plait.workers.ray import CHECKPOINT_STEPS, RayWorker, pool
from plait_bench.countdown import draw

from .._tools.measure import Row, spread

TRIALS, PROBLEMS, IN_FLIGHT = 10, 40, 32
PLANNER = "threads:early=false,stop_on_verified=false"


class Counted(Engine):
    """An engine that writes down what it has sampled, where its death cannot reach it."""

    def __init__(self, *args: Any, ledger: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ledger = ledger

    async def start(self) -> None:
        """Start the engine and the thread that writes."""
        await super().start()
        path = Path(self._ledger) / f"{os.getpid()}.json"
        threading.Thread(target=self._write, args=(path,), daemon=True).start()

    def _write(self, path: Path) -> None:
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        told = -1
        while True:
            count = self.stats()["generated"]
            if count != told:
                os.pwrite(file, f"{count:<12}".encode(), 0)
                told = count
            time.sleep(0.001)


def sampled(ledger: Path) -> int:
    """Return the tokens that all engines, dead ones too, have sampled."""
    return sum(int(path.read_text() or 0) for path in ledger.glob("*.json"))


def _returned(worker: RayWorker, seconds: float = 60.0) -> None:
    """Wait until a worker whose actor was killed has another."""
    dead, end = worker.pid, time.monotonic() + seconds
    while worker.pid == dead and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)


def engines(ledger: Path, count: int = 2, **options: Any) -> list[RayWorker]:
    """Return counted engines in Ray actors."""
    settings = {"model": str(BUNDLED_MODEL), "slots": 64, "ledger": str(ledger), **options}
    return pool(count, "experiments.faults.run:Counted", {"checkpoint": CHECKPOINT_STEPS, "threads": 1, **settings})


async def solve(orchestrator: AsyncOrchestrator, seed: int) -> list[Any]:
    """Return the answers to all puzzles, in order."""
    problems = draw(PROBLEMS, seed)
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(text: str) -> Any:
        async with room:
            answer = await orchestrator.run(text, task="countdown", planner=PLANNER, policies=[])
            moved = sum(row.tries > 1 for row in answer.report.steps)
            return answer.status, answer.answer, moved, answer.total_tokens

    return await asyncio.gather(*(one(problem.text) for problem in problems))


async def trial(orchestrator: AsyncOrchestrator, workers: list[RayWorker], ledger: Path, seed: int) -> dict[str, Any]:
    """Run undisturbed, then with an engine killed; return the differences."""
    rng = random.Random(seed)
    before, began = sampled(ledger), time.perf_counter()
    reference = await solve(orchestrator, seed)
    seconds = time.perf_counter() - began
    await asyncio.sleep(0.05)
    middle = sampled(ledger)
    running = asyncio.ensure_future(solve(orchestrator, seed))
    await asyncio.sleep(seconds * rng.uniform(0.15, 0.8))
    victim = rng.choice(workers)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    answers = await running
    await asyncio.sleep(0.05)
    whole, disturbed = middle - before, sampled(ledger) - middle
    await asyncio.to_thread(_returned, victim)  # the next trial wants both
    return compared(reference, answers, whole, disturbed)


def compared(reference: list[Any], answers: list[Any], whole: int, disturbed: int) -> dict[str, Any]:
    """Return the number of equal answers, of steps resumed elsewhere, and of tokens sampled twice; `whole`
    and `disturbed` are the tokens sampled without and with a death."""
    assert whole == sum(each[3] for each in reference), "without a death everything sampled is in an answer"
    same = sum(a[:2] == b[:2] for a, b in zip(reference, answers, strict=True))
    moved = sum(each[2] for each in answers)
    repeated = (disturbed - sum(each[3] for each in answers)) / whole
    return {"same": same, "moved": moved, "tokens": whole, "repeated": repeated}


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder)
        workers = engines(ledger)
        for worker in workers:
            worker._restarts = TRIALS + 1
        config = Config(journal="off")
        async with AsyncOrchestrator(workers=workers, config=config) as orchestrator:
            await solve(orchestrator, 99)
            trials = [await trial(orchestrator, workers, ledger, seed) for seed in range(TRIALS)]
    rows.append(_row(f"an engine of two killed, {TRIALS} trials", trials))
    nodes = json.loads(await _in_process("nodes"))
    rows.append(_row(f"a node of two killed, {len(nodes)} trials", nodes))
    return rows


def _row(what: str, trials: list[dict[str, Any]]) -> Row:
    same, count = sum(each["same"] for each in trials), PROBLEMS * len(trials)
    repeated = spread([100 * each["repeated"] for each in trials])
    tokens = spread([each["tokens"] for each in trials])
    moved = sum(each["moved"] for each in trials)
    ours = f"{same} of {count} answers the same; {moved} steps went on elsewhere; {repeated} % repeated"
    return Row(what, ours, f"undisturbed {tokens} tokens", f"{1 + repeated.median / 100:.4f}", "all the same, ≤ 1 %")


async def _in_process(name: str) -> str:
    """Run a part in a process of its own, since a cluster of its own belongs to a process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "experiments.faults.run", name, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"experiments.faults.run {name} failed")
    return out.decode().splitlines()[-1]


async def nodes(trials: int = 3) -> list[dict[str, Any]]:
    """Kill a node of a local cluster of two, with the engine on it."""
    from ray.cluster_utils import Cluster

    found: list[dict[str, Any]] = []
    for seed in range(100, 100 + trials):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
        other = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        os.environ["RAY_ADDRESS"] = str(cluster.address)
        try:
            with tempfile.TemporaryDirectory() as folder:
                found.append(await _node_trial(other, Path(folder), seed))
        finally:
            cluster.shutdown()
    return found


async def _node_trial(other: Any, ledger: Path, seed: int) -> dict[str, Any]:
    workers = pool(
        2, "experiments.faults.run:Counted",
        {"model": str(BUNDLED_MODEL), "slots": 64, "ledger": str(ledger), "checkpoint": CHECKPOINT_STEPS, "threads": 1},
        strategy="STRICT_SPREAD",
    )  # fmt: skip
    async with AsyncOrchestrator(workers=workers, config=Config(journal="off")) as orchestrator:
        await solve(orchestrator, seed + 1)
        return await node_trial(orchestrator, other, ledger, seed)


async def node_trial(orchestrator: AsyncOrchestrator, other: Any, ledger: Path, seed: int) -> dict[str, Any]:
    """Run undisturbed, then with the node `other` killed; return the differences."""
    before, began = sampled(ledger), time.perf_counter()
    reference = await solve(orchestrator, seed)
    seconds = time.perf_counter() - began
    await asyncio.sleep(0.05)
    middle = sampled(ledger)
    running = asyncio.ensure_future(solve(orchestrator, seed))
    await asyncio.sleep(seconds * 0.4)
    raylet = other.all_processes["raylet"][0].process.pid
    for pid in (raylet, *descendants(raylet)):  # as when the machine is switched off
        os.kill(pid, signal.SIGKILL)
    answers = await running
    await asyncio.sleep(0.05)
    whole, disturbed = middle - before, sampled(ledger) - middle
    return compared(reference, answers, whole, disturbed)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(nodes())) + "\n")

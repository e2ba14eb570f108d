"""What every worker of model steps owes its driver, as tests to inherit.

A subclass says which steps end soon, go on for long and fail, and which fixture gives the started worker.
"""

from __future__ import annotations

import asyncio
import itertools

from plait.core import ModelCall, Progress, Result, ToolCall
from plait.core.events import Job
from plait.core.interfaces import Worker
from plait.core.result import Failure

_attempts = itertools.count(1_000_000)


def job_of(op: ModelCall | ToolCall) -> Job:
    """A job with an attempt number that no other job has."""
    number = next(_attempts)
    return Job(attempt=number, run="contract", step=f"contract:{number}", op=op)


async def items_of(worker: Worker, job: Job) -> list[Progress | Result | Failure]:
    """All that a worker says of a job."""
    return [item async for item in worker.run(job)]


class WorkerContract:
    """Inherit, and give the fixture `worker`."""

    warm = 0.4
    """Seconds after which an endless step has generated something and is far from its end."""

    def make(self) -> Worker:
        """A worker that is not started."""
        raise NotImplementedError

    def short(self, stream: bool = False) -> ModelCall:
        """A step that ends by itself within a second, with some text."""
        raise NotImplementedError

    def endless(self, stream: bool = False) -> ModelCall:
        """A step that goes on for much longer than `warm`."""
        raise NotImplementedError

    def failing(self) -> ModelCall | ToolCall:
        """A step that cannot succeed."""
        raise NotImplementedError

    async def test_it_is_a_worker(self, worker: Worker) -> None:
        assert isinstance(worker, Worker)
        assert worker.slots >= 1 and "think" in worker.serves and worker.name

    async def test_a_silent_job_gives_its_result_and_nothing_else(self, worker: Worker) -> None:
        (end,) = await items_of(worker, job_of(self.short()))
        assert isinstance(end, Result) and end.finish in ("stop", "length")
        assert end.text and end.usage.completion > 0

    async def test_deltas_of_a_streaming_job_add_up_to_its_result(self, worker: Worker) -> None:
        *news, end = await items_of(worker, job_of(self.short(stream=True)))
        assert isinstance(end, Result) and news
        assert all(isinstance(item, Progress) for item in news)
        assert "".join(item.text for item in news if isinstance(item, Progress)) == end.text
        assert sum(item.tokens for item in news if isinstance(item, Progress)) == end.usage.completion

    async def test_jobs_at_the_same_time_each_end_once(self, worker: Worker) -> None:
        jobs = [job_of(self.short(stream=number % 2 == 0)) for number in range(3 * min(worker.slots, 8))]
        for items in await asyncio.gather(*(items_of(worker, job) for job in jobs)):
            assert [type(item) for item in items].count(Result) == 1 and isinstance(items[-1], Result)

    async def test_a_failure_is_data_and_the_next_job_runs(self, worker: Worker) -> None:
        (end,) = await items_of(worker, job_of(self.failing()))
        assert isinstance(end, Failure) and end.kind and end.message and "\n" not in end.message and not end.lost
        (end,) = await items_of(worker, job_of(self.short()))
        assert isinstance(end, Result)

    async def test_a_cancelled_job_ends_promptly_with_what_was_generated(self, worker: Worker) -> None:
        job = job_of(self.endless(stream=True))
        running = worker.run(job)
        seen = [await anext(running)]
        await worker.cancel(job.attempt)
        await worker.cancel(job.attempt)
        async with asyncio.timeout(300):
            seen += [item async for item in running]
        *news, end = seen
        assert isinstance(end, Result) and end.finish == "cancelled"
        assert end.text and end.usage.completion > 0
        assert "".join(item.text for item in news if isinstance(item, Progress)) == end.text

    async def test_a_cancelled_silent_job_tells_what_was_generated(self, worker: Worker) -> None:
        warm = self.warm
        while True:
            job = job_of(self.endless())
            task = asyncio.create_task(items_of(worker, job))
            await asyncio.sleep(warm)
            await worker.cancel(job.attempt)
            (end,) = await asyncio.wait_for(task, 300)
            if warm > 10.0 or not isinstance(end, Result) or end.text:
                break
            warm *= 2  # a busy machine may not have begun yet
        assert isinstance(end, Result) and end.finish == "cancelled" and end.text and end.usage.completion > 0

    async def test_a_job_cancelled_as_soon_as_it_was_handed_over_ends(self, worker: Worker) -> None:
        jobs = [job_of(self.endless()) for _ in range(min(worker.slots, 4))]
        tasks = [asyncio.create_task(items_of(worker, job)) for job in jobs]
        for turns, job in enumerate(jobs):
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            await worker.cancel(job.attempt)
        for items in await asyncio.wait_for(asyncio.gather(*tasks), 300):
            (end,) = items
            assert isinstance(end, Result) and end.finish == "cancelled"

    async def test_cancels_of_unknown_and_ended_jobs_are_ignored(self, worker: Worker) -> None:
        await worker.cancel(10**9)
        job = job_of(self.short())
        first = await items_of(worker, job)
        await worker.cancel(job.attempt)
        assert isinstance(first[-1], Result) and first[-1].finish != "cancelled"
        (end,) = await items_of(worker, job_of(self.short()))
        assert isinstance(end, Result) and end.finish != "cancelled"

    async def test_one_that_never_started_can_be_closed_twice(self) -> None:
        made = self.make()
        await made.close()
        await made.close()

    async def test_one_that_never_started_does_not_hang(self) -> None:
        made = self.make()
        items = await asyncio.wait_for(items_of(made, job_of(self.short())), 300)
        await made.close()
        assert isinstance(items[-1], Result) or (isinstance(items[-1], Failure) and items[-1].lost)

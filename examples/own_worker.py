"""A worker of your own: a program that reads the prompt on standard input and writes the text to standard output."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence

from plait import Orchestrator, Worker
from plait.core import Failure, Job, ModelCall, Progress, Result, Text, Usage
from plait.core.errors import EngineError, WorkerError, WorkerLost
from plait.core.result import as_failure

# Replaces a model: it writes the prompt in capitals, word by word.
SHOUT = """
import sys, time
for word in sys.stdin.read().upper().split():
    print(word, end=" ", flush=True)
    time.sleep(0.02)
"""


class Program(Worker):
    """Starts one process for each think step."""

    serves = ("think",)

    def __init__(self, command: Sequence[str] = (sys.executable, "-c", SHOUT), slots: int = 4) -> None:
        """Start nothing: the constructor is cheap, and `start` does the work."""
        self.name, self.slots, self._command = "program", slots, command
        self._jobs: dict[int, _Running] = {}
        self._open = False
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Fail now, with the cause and the remedy, if every step would fail."""
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        except OSError as error:
            raise WorkerError(f"{self._command[0]} cannot be started ({error}): check the path") from None
        await process.communicate(b"")
        self._open = True

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Yield the text as it comes, then exactly one result or failure. A job's own trouble is never raised."""
        if not self._open:
            yield as_failure(WorkerLost("the worker 'program' is not started"))
            return
        assert isinstance(job.op, ModelCall)  # by `serves`
        prompt = "".join(part.text for part in job.op.prompt if isinstance(part, Text))
        running = self._jobs[job.attempt] = _Running()
        text, words, decoder = "", 0, codecs.getincrementaldecoder("utf-8")("replace")
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
            running.began(process)
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(prompt.encode())
            process.stdin.close()
            while data := await process.stdout.read(4096):
                piece = decoder.decode(data)
                text, words = text + piece, words + len(piece.split())
                if job.op.stream:
                    yield Progress(piece, len(piece.split()))
            code = await process.wait()
        finally:  # also when the caller stops reading
            running.stop()
            del self._jobs[job.attempt]
        usage = Usage(prompt=len(prompt.split()), completion=words)
        if running.cancelled:
            yield Result(value=text, usage=usage, finish="cancelled")
        elif code:
            failure = as_failure(EngineError(f"the program ended with code {code}"))
            yield failure.model_copy(update={"usage": usage})
        else:
            yield Result(value=text, usage=usage)

    async def cancel(self, attempt: int) -> None:
        """End the process; `run` then yields what there was. An unknown attempt is ignored."""
        if running := self._jobs.get(attempt):
            running.cancelled = True
            running.stop()

    async def health(self) -> AsyncIterator[bool]:
        """Ready until closed: a process that dies takes only its own step with it."""
        if self._open:
            yield True
            await self._closed.wait()

    async def close(self) -> None:
        """End whatever runs."""
        self._open = False
        self._closed.set()
        for attempt in list(self._jobs):
            await self.cancel(attempt)


class _Running:
    """The process of one attempt, which may be cancelled before it has begun."""

    def __init__(self) -> None:
        self.cancelled = False
        self._process: Process | None = None

    def began(self, process: Process) -> None:
        self._process = process
        if self.cancelled:
            self.stop()

    def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def main() -> None:
    with Orchestrator(workers=[Program()]) as plait:
        answer = plait.run("six times seven", planner="sample:n=3")
    print(answer.answer, answer.status, answer.usage.completion)


if __name__ == "__main__":
    main()

# prints "SIX TIMES SEVEN done 9"

"""Token ids that an actor tells while its jobs run: through a pipe, kept here, told to the scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core import ModelCall, Progress
from plait.core.errors import EngineError, WorkerError
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers._shared.batch_streams import TokenBatch
from plait.workers.ray import RayWorker, actor
from plait.workers.ray.actor import HEAD, ActorJob, IdsIn, IdsOut, TokenBuffer
from plait.workers.scripted import Reply

HOST = "plait.workers.scripted:Scripted"
REPLIES = [Reply(text="one two three")]


@pytest.fixture
def pipe() -> Iterator[IdsIn]:
    pipe = IdsIn()
    yield pipe
    pipe.close()


def there(path: str) -> bool:
    return Path(path).parent.exists()


def plain(checkpoint: TokenBatch) -> tuple[list[int], ...]:
    return tuple(map(list, checkpoint))


told_ids = st.tuples(st.integers(0, 2**62), st.lists(st.integers(0, 2**32 - 1), max_size=5))
checkpoints = st.lists(st.lists(told_ids, max_size=4), min_size=1, max_size=6)


@given(checkpoints, st.data())
def test_what_is_written_is_read_in_whole_checkpoints_however_it_arrives(parts: list, data: st.DataObject) -> None:
    with closing(IdsIn()) as pipe, closing(IdsOut(pipe.path)) as out:
        sent: list[TokenBatch] = []
        for each in parts:
            ids = [token for _, tokens in each for token in tokens]
            sent.append(TokenBatch([attempt for attempt, _ in each], [len(tokens) for _, tokens in each], ids))
            out.write(sent[-1])
        raw = os.read(pipe.fileno(), 1 << 16)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
        got: list[TokenBatch] = []
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            os.write(out._file, raw[begin:end])
            got += pipe.read()
        assert list(map(plain, got)) == list(map(plain, sent)) and not pipe._unread and not pipe.ended


def test_what_was_written_outlives_its_writer(pipe: IdsIn) -> None:
    code = (
        "import sys, time; from plait.workers.ray.actor import *\n"
        "from plait.workers._shared.batch_streams import TokenBatch\n"
        "out = IdsOut(sys.argv[1]); out.write(TokenBatch([7], [3], [1, 2, 3])); print('written', flush=True)\n"
        "time.sleep(60)"
    )
    root = Path(actor.__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", code, pipe.path], stdout=subprocess.PIPE, cwd=root) as child:
        assert child.stdout is not None and child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert [plain(each) for each in pipe.read()] == [([7], [3], [1, 2, 3])] and pipe.ended


def test_half_a_checkpoint_is_not_told(pipe: IdsIn) -> None:
    out = IdsOut(pipe.path)
    os.write(out._file, HEAD.pack(1, 3) + b"\x07" * 9)
    out.close()
    assert not list(pipe.read()) and pipe.ended


def test_what_the_pipe_has_no_room_for_goes_later_and_nothing_is_lost(pipe: IdsIn) -> None:
    out = IdsOut(pipe.path)
    for number in range(100):
        out.write(TokenBatch([number], [1000], [number] * 1000))  # 400 KB, and a pipe holds 64
    assert out._unsent
    got: list[TokenBatch] = []
    while len(got) < 100:
        got += pipe.read()
        out.write(TokenBatch([1000], [0], []))
    assert [each.attempts[0] for each in got][:100] == list(range(100))
    assert all(len(each.ids) == 1000 for each in got[:100])
    out.close()


def test_a_writer_whose_reader_has_gone_goes_on(pipe: IdsIn) -> None:
    other = IdsIn()
    out = IdsOut(other.path)
    other.close()
    out.write(TokenBatch([1], [1], [5]))
    assert not out._unsent
    out.close()


def test_a_pipe_that_nobody_reads_is_not_taken_for_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ids")  # as a machine sees it that shares the folder with the reader's
    for path in (tmp_path / "ids", tmp_path / "none"):
        with pytest.raises(OSError):
            IdsOut(str(path))


async def test_without_named_pipes_there_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "mkfifo")
    assert TokenBuffer({}).open() is None


async def test_each_actor_has_a_pipe_of_its_own_and_no_file_is_left() -> None:
    told, seen = TokenBuffer({}), []
    for _ in range(3):
        path = told.open()
        assert path is not None
        seen.append(path)
        assert there(path)
        told.opened()
        assert not there(path)
    assert len(set(seen)) == 3
    told.open()
    told.close()
    told.close()


def live(attempt: int, seen: list[Any], report: bool = False) -> ActorJob:
    job = Job(attempt=attempt, run="r", step=f"r:{attempt}", op=ModelCall(prompt="x"), report=report)
    return ActorJob(job, seen.append)


@pytest.mark.parametrize(("report", "tokens"), [(True, 16), (False, 256)])
def test_ids_are_reported_in_pieces_of_a_fixed_size_and_seldom_where_nobody_counts_them(
    report: bool, tokens: int
) -> None:
    seen: list[Any] = []
    buffer = TokenBuffer({7: live(7, seen, report)})
    for number in range(0, 1000, 4):
        buffer.keep(TokenBatch([7], [4], list(range(number, number + 4))))
    assert [len(item.ids) for item in seen] == [tokens] * (1000 // tokens)
    buffer.report_all()
    buffer.report_all()
    assert [token for item in seen for token in item.ids] == list(range(1000))
    assert all(item.tokens == len(item.ids) for item in seen)


async def test_ids_from_the_pipe_are_kept_as_they_come() -> None:
    seen: list[Any] = []
    job = live(7, seen)
    buffer = TokenBuffer({7: job})
    path = buffer.open()
    assert path is not None
    out = IdsOut(path)
    for number in range(1, 6):
        out.write(TokenBatch([7], [1], [number]))
        async with asyncio.timeout(300):
            while job.ids != list(range(1, number + 1)):
                await asyncio.sleep(0)
    assert not seen
    out.close()
    buffer.close()


@pytest.mark.parametrize("pipe", [True, False])
async def test_ids_of_checkpoints_are_kept_until_the_actor_dies(monkeypatch: pytest.MonkeyPatch, pipe: bool) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, restarts=0)
    seen: dict[int, list[Any]] = {7: [], 8: []}
    worker._live.update({attempt: live(attempt, items) for attempt, items in seen.items()})
    path = worker._tokens.open()
    assert path is not None
    out = IdsOut(path)
    worker._tokens.opened()
    worker._tokens.keep(TokenBatch([7, 9], [2, 1], [1, 2, 99]))  # nobody waits for attempt 9
    for checkpoint in (TokenBatch([8, 7], [1, 2], [5, 3, 4]), TokenBatch([7], [1], [6])):
        (out.write if pipe else worker._tokens.keep)(checkpoint)
    out.close()
    assert seen == {7: [], 8: []}

    async def read() -> str:
        return "it was killed"

    monkeypatch.setattr(worker, "_read", read)
    await worker._follow()
    for attempt, ids in ((7, (1, 2, 3, 4, 6)), (8, (5,))):
        news, end = seen[attempt]
        assert isinstance(news, Progress) and (news.ids, news.tokens, news.text) == (ids, len(ids), "")
        assert isinstance(end, Failure) and end.lost and "it was killed" in end.message


async def test_ids_are_reported_before_the_news_that_the_actor_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = RayWorker(HOST, {"replies": REPLIES}, restarts=1)
    heard: list[Any] = []
    worker._live[7] = live(7, heard)

    async def watcher() -> None:
        async for healthy in worker.health():
            heard.append(healthy)

    async def read() -> str:
        worker._tokens.keep(TokenBatch([7], [2], [1, 2]))
        return "it was killed"

    async def make() -> None:
        raise WorkerError("no room")

    monkeypatch.setattr(worker, "_read", read)
    monkeypatch.setattr(worker, "_make", make)
    watching = asyncio.create_task(watcher())
    await asyncio.sleep(0)
    await worker._follow()
    await watching
    assert [type(item) for item in heard] == [Progress, bool, Failure] and heard[1] is False


@pytest.mark.parametrize(
    ("errors", "restarts", "made"),
    [
        ([], 3, 1),
        ([WorkerError("its node is not back")] * 2, 3, 3),
        ([WorkerError("its node is not back")] * 3, 3, 3),  # the death itself is the first of the three
        ([EngineError("there is no such model")], 3, 1),
        ([RuntimeError("of Ray's own")], 1, 1),
    ],
)
async def test_a_node_that_is_not_back_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], restarts: int, made: int
) -> None:
    monkeypatch.setattr("plait.workers.ray.PAUSE_SECONDS", 0.001)
    worker, calls, reads = RayWorker(HOST, {"replies": REPLIES}, restarts=restarts), 0, 0

    async def read() -> str:
        nonlocal reads
        reads += 1
        if reads > 1:
            worker._restarts = 0  # the second actor's death ends the test
        return "its node went away"

    async def make() -> None:
        nonlocal calls
        calls += 1
        if calls <= len(errors):
            raise errors[calls - 1]

    monkeypatch.setattr(worker, "_read", read)
    monkeypatch.setattr(worker, "_make", make)
    await worker._follow()
    heard = [worker._health.get_nowait() for _ in range(worker._health.qsize())]
    came_back = made > len(errors)
    assert calls == made
    assert heard == ([False, True, None] if came_back else [False, None])

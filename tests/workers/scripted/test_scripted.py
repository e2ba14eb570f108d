"""The scripted worker: which reply answers, and that it is generated as an engine would generate it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import ModelCall, Text, Tokens, ToolCall
from plait.core.result import Failure, Result, Usage
from plait.core.sampling import Sampling
from plait.workers.scripted import Reply, Script, Scripted

Items = list[Progress | Result | Failure]


def job(prompt: str, attempt: int = 1, stream: bool = True, **sampling: Any) -> Job:
    think = ModelCall(prompt=(Text(text=prompt),), stream=stream, sampling=Sampling(**sampling))
    return Job(attempt=attempt, run="r", step="r:s", op=think)


async def items(worker: Scripted, a_job: Job) -> Items:
    return [item async for item in worker.run(a_job)]


async def ask(worker: Scripted, prompt: str, **sampling: Any) -> Result | Failure:
    last = (await items(worker, job(prompt, **sampling)))[-1]
    assert isinstance(last, Result | Failure)
    return last


async def reply(text: str, **sampling: Any) -> Result:
    ended = await ask(Scripted([Reply(text=text)]), "p", **sampling)
    assert isinstance(ended, Result)
    return ended


def test_it_is_a_worker() -> None:
    worker = Scripted([])
    assert isinstance(worker, Worker)
    assert (worker.name, worker.serves) == ("scripted", ("think",))


# --- which reply answers ---


async def test_first_match_wins() -> None:
    worker = Scripted([Reply(when="two", text="2"), Reply(when=r"on+e|two", text="1"), Reply(text="any")])
    assert [(await ask(worker, prompt)).text for prompt in ("onne", "one two", "three")] == ["1", "2", "any"]  # type: ignore[union-attr]


async def test_patterns_see_the_whole_prompt_and_its_lines() -> None:
    worker = Scripted(
        [Reply(when="^second line$", text="line"), Reply(when="a.*z", text="span"), Reply(when="(?-s:b.*y)")]
    )
    assert (await ask(worker, "first\nsecond line\nthird")).text == "line"  # type: ignore[union-attr]
    assert (await ask(worker, "a\n\nz")).text == "span"  # type: ignore[union-attr]
    assert isinstance(await ask(worker, "b\ny"), Failure)


async def test_the_pieces_of_a_prompt_are_one_text() -> None:
    worker = Scripted([Reply(when="^ab$", text="yes")])
    think = ModelCall(prompt=(Text(text="a"), Text(text="b")))
    assert (await items(worker, Job(attempt=1, run="r", step="s", op=think)))[-1].text == "yes"  # type: ignore[union-attr]


async def test_a_reply_that_is_used_up_is_passed_over() -> None:
    worker = Scripted([Reply(when="x", text="first", times=2), Reply(when="x", text="then", times=1)])
    assert [(await ask(worker, "x")).text for _ in range(3)] == ["first", "first", "then"]  # type: ignore[union-attr]
    ended = await ask(worker, "x")
    assert isinstance(ended, Failure) and "that is left" in ended.message


async def test_no_match_shows_the_head_of_the_prompt_and_a_remedy() -> None:
    ended = await ask(Scripted([Reply(when="x")]), "What is 1 + 1?" + "?" * 1000)
    assert isinstance(ended, Failure)
    assert ended.kind == "EngineError" and not ended.retryable
    assert "What is 1 + 1?" in ended.message and "`when`" in ended.message and len(ended.message) < 300


async def test_what_it_cannot_serve() -> None:
    worker = Scripted([Reply()])
    tokens = await items(worker, Job(attempt=1, run="r", step="s", op=ModelCall(prompt=(Tokens(ids=(1, 2)),))))
    assert isinstance(tokens[0], Failure) and "as text" in tokens[0].message
    call = await items(worker, Job(attempt=1, run="r", step="s", op=ToolCall(tool="t")))
    assert isinstance(call[0], Failure) and "call" in call[0].message


# --- what is generated ---


async def test_a_stream_has_a_delta_for_each_word_and_others_only_the_result() -> None:
    worker = Scripted([Reply(text="3 5\n -> 24")])
    news = await items(worker, job("p q", stream=True))
    assert news == [
        Progress("3", 1),
        Progress(" 5", 1),
        Progress("\n ->", 1),
        Progress(" 24", 1),
        Result(value="3 5\n -> 24", usage=Usage(prompt=2, completion=4)),
    ]
    assert await items(worker, job("x y", stream=False)) == [news[-1]]
    assert worker.counts["generated"] == 8


async def test_max_tokens() -> None:
    cut = await reply("a b c", max_tokens=2)
    assert (cut.value, cut.finish, cut.usage.completion) == ("a b", "length", 2)
    whole = await reply("a b c", max_tokens=3)
    assert (whole.value, whole.finish) == ("a b c", "stop")


async def test_stop_strings() -> None:
    cut = await reply("go on <join> more", stop=("<join>",))
    assert (cut.value, cut.finish, cut.usage.completion) == ("go on ", "stop", 3)
    kept = await reply("go on <join> more", stop=("<join>",), keep_stop=True)
    assert (kept.value, kept.finish, kept.usage.completion) == ("go on <join>", "stop", 3)
    inside = await reply("go o<x>n", stop=("<x>",))
    assert (inside.value, inside.usage.completion) == ("go o", 2)
    across = await reply("a b c d", stop=("b c",))
    assert (across.value, across.usage.completion) == ("a ", 3)
    first_complete = await reply("a b c d", stop=("a b c", "b"))
    assert first_complete.value == "a "
    beyond_the_limit = await reply("a b c d", stop=("b c",), max_tokens=2)
    assert (beyond_the_limit.value, beyond_the_limit.finish) == ("a b", "length")


async def test_finish_of_the_reply() -> None:
    worker = Scripted([Reply(when="1", text="half", finish="length"), Reply(when="2", text="half a", finish="error")])
    ended = await ask(worker, "1")
    assert isinstance(ended, Result) and ended.finish == "length"
    news = await items(worker, job("2"))
    assert news[:-1] == [Progress("half", 1), Progress(" a", 1)]
    assert isinstance(news[-1], Failure) and news[-1].kind == "EngineError" and not news[-1].retryable
    assert "half a" in news[-1].message
    before_the_error = await ask(worker, "2", max_tokens=1)
    assert isinstance(before_the_error, Result) and before_the_error.finish == "length"


async def test_an_error_may_be_retryable_and_go_away() -> None:
    worker = Scripted([Reply(finish="error", retryable=True, times=1), Reply(text="fine")])
    first = await ask(worker, "p")
    assert isinstance(first, Failure) and first.retryable
    assert (await ask(worker, "p")).text == "fine"  # type: ignore[union-attr]


_text = st.text(st.sampled_from(" \n\tab<>é"), max_size=40)


@given(_text, st.lists(_text.filter(bool), max_size=3), st.integers(1, 12), st.booleans(), st.sampled_from([None, 1e9]))
def test_deltas_add_up_to_the_text_whatever_ends_it(
    text: str, stop: list[str], most: int, keep: bool, rate: float | None
) -> None:
    worker = Scripted([Reply(text=text, tokens_per_second=rate)])
    news = asyncio.run(items(worker, job("p", stop=stop, max_tokens=most, keep_stop=keep)))
    *deltas, result = news
    assert isinstance(result, Result) and isinstance(result.value, str)
    assert all(isinstance(delta, Progress) for delta in deltas)
    assert "".join(delta.text for delta in deltas) == result.value  # type: ignore[union-attr]
    assert sum(delta.tokens for delta in deltas) == result.usage.completion <= most  # type: ignore[union-attr]
    assert worker.counts["generated"] == result.usage.completion
    assert text.startswith(result.value)
    found = [each for each in stop if each in result.value]
    if keep:
        assert all(result.value.index(each) + len(each) == len(result.value) for each in found)
    else:
        assert not found
    if result.finish == "length":
        assert result.usage.completion == most
    elif not any(each in text for each in stop):
        assert result.value == text


# --- time and cancellation ---


async def test_delay_and_rate_follow_the_loops_clock() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    news = await items(Scripted([Reply(text="a b c", delay=0.02, tokens_per_second=100)]), job("p"))
    assert loop.time() - start >= 0.05 - 0.002, "0.02 s before the first token, 0.01 s for each"
    assert "".join(item.text for item in news[:-1]) == "a b c"  # type: ignore[union-attr]


async def test_cancel_while_generating_gives_the_text_so_far() -> None:
    worker = Scripted([Reply(text="a b " + "c " * 1000, tokens_per_second=200)])
    seen: Items = []
    async for item in worker.run(job("p", 7)):
        seen.append(item)
        if sum(each.tokens for each in seen if isinstance(each, Progress)) >= 2:
            await worker.cancel(7)
    result = seen[-1]
    assert isinstance(result, Result) and result.finish == "cancelled"
    assert result.value == "".join(item.text for item in seen if isinstance(item, Progress))
    assert 2 <= result.usage.completion < 1000
    assert worker.counts["generated"] == result.usage.completion, "nothing is generated after a cancel"
    assert worker.stats()["running"] == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", ["never", ""])
async def test_cancel_before_the_first_token(text: str, stream: bool) -> None:
    worker = Scripted([Reply(text=text, delay=3600)])
    running = asyncio.create_task(items(worker, job("p", 7, stream)))
    while worker.stats()["running"] == 0:
        await asyncio.sleep(0)
    await worker.cancel(6)  # unknown: ignored
    await worker.cancel(7)
    assert await running == [Result(value="", usage=Usage(prompt=1), finish="cancelled")]
    await worker.cancel(7)  # finished: ignored


async def test_cancel_of_a_reply_without_a_rate() -> None:
    worker = Scripted([Reply(text="word " * 100_000)])
    running = asyncio.create_task(items(worker, job("p", 7, stream=False, max_tokens=100_000)))
    while worker.counts["generated"] == 0:
        await asyncio.sleep(0)
    await worker.cancel(7)
    (result,) = await running
    assert isinstance(result, Result) and result.finish == "cancelled"
    assert 0 < result.usage.completion < 100_000


async def test_nothing_is_left_when_the_caller_gives_up() -> None:
    worker = Scripted([Reply(text="never", delay=3600)])
    running = asyncio.create_task(items(worker, job("p", 7)))
    while worker.stats()["running"] == 0:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert worker.stats()["running"] == 0


async def test_close_ends_everything_and_may_be_called_twice() -> None:
    worker = Scripted([Reply(text="never", delay=3600)])
    await worker.start()
    health = worker.health()
    assert await anext(health) is True
    running = asyncio.create_task(items(worker, job("p")))
    while worker.stats()["running"] == 0:
        await asyncio.sleep(0)
    await worker.close()
    last = (await running)[-1]
    assert isinstance(last, Result) and last.finish == "cancelled"
    assert [up async for up in health] == []
    await worker.close()
    after = await ask(worker, "p")
    assert isinstance(after, Failure) and after.lost


# --- the prefix cache ---


async def test_cached_counts_the_words_shared_with_earlier_contexts() -> None:
    worker = Scripted([Reply(text="think 11-7=4\n")])

    async def usage(prompt: str) -> tuple[int, int]:
        ended = await ask(worker, prompt)
        assert isinstance(ended, Result)
        return ended.usage.prompt, ended.usage.cached

    assert await usage("3 5 7 11 ->") == (5, 0)
    assert await usage("3 5 7 11 ->") == (5, 5), "the same prompt"
    assert await usage("3 5 7 12 ->") == (5, 3), "a common beginning"
    assert await usage("9 3 5 7") == (4, 0), "not a beginning"
    assert await usage("3 5 7 11 ->think 11-7=4\nthen") == (7, 6), "an output counts with its prompt"
    assert worker.counts["cached"] == 5 + 3 + 6


async def test_siblings_share_a_prompt_that_is_still_being_answered() -> None:
    worker = Scripted([Reply(text="x", delay=0.005)])
    ended = await asyncio.gather(ask(worker, "a b c"), ask(worker, "a b d"))
    assert [each.usage.cached for each in ended if isinstance(each, Result)] == [0, 2]


# --- script files ---


async def test_a_script_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"replies": [{"when": "hi", "text": "ho", "times": 3, "tokens_per_second": 1000}]}))
    worker = Scripted(script=str(file))
    assert worker.script == Script(replies=(Reply(when="hi", text="ho", times=3, tokens_per_second=1000),))
    assert (await ask(worker, "hi")).text == "ho"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, ["cannot be read", "No such file"]),
        ("", ["not JSON"]),
        ('{"replies": [}', ["not JSON", "line 1 column 14"]),
        ("[]", ["object"]),
        ("{}", ["replies is missing"]),
        ('{"replies": 3}', ["replies", "array"]),
        ('{"replies": [], "extra": 1}', ["extra", "not known"]),
        ('{"replies": [{}, {"finish": "done"}]}', ["replies[1].finish", "'stop', 'length' or 'error'", "'done'"]),
        ('{"replies": [{"when": "("}]}', ["replies[0].when", "not a regular expression"]),
        ('{"replies": [{"whn": "x"}]}', ["replies[0].whn", "not known"]),
        ('{"replies": [{"delay": -1}]}', ["replies[0].delay", "greater than or equal to 0"]),
        ('{"replies": [{"delay": 1e999}]}', ["replies[0].delay", "finite"]),
        ('{"replies": [{"tokens_per_second": 0}]}', ["replies[0].tokens_per_second", "greater than 0"]),
        ('{"replies": [{"times": 0}]}', ["replies[0].times", "greater than or equal to 1"]),
        ('{"replies": [{"text": 3}]}', ["replies[0].text", "string"]),
        ('{"replies": [{"text": "\\ud800"}]}', ["not JSON"]),
    ],
)
def test_bad_script_files_name_the_place_of_the_fault(tmp_path: Path, text: str | None, said: list[str]) -> None:
    file = tmp_path / "script.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Scripted(script=file)
    message = str(caught.value)
    assert str(file) in message and "\n" not in message
    for piece in said:
        assert piece in message


def test_a_folder_or_binary_file_is_not_a_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Scripted(script=tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not JSON"):
        Scripted(script=tmp_path / "x")


def test_replies_or_a_script_but_not_both(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("--script FILE")):
        Scripted()
    with pytest.raises(ConfigError, match="not both"):
        Scripted([], script=tmp_path)

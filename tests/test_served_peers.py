"""What the comparison on one server rests on: the server's own count of late tokens, the server without a model, the
environments of other libraries, and the page."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from experiments._tools import by_hand, contenders, scripted_server, watch
from experiments._tools.server import scripted
from experiments.peers import compared, page as peers_page, run as peers, samplers, samplers_child
from plait_bench.countdown import CountdownProblem, draw, is_right
from training.check import check

HEAD = "<serial> 8 T26 11 7 5 3 <go>"
RIGHT = " <try> 11 + 7 = 18 <hit> 11 + 7 = 18 ; 18 + 5 = 23 ; 23 + 3 = 26"


def seen(prompt: str, first: float, last: float, *texts: str, left: bool = False) -> watch.Seen:
    made = watch.Seen(0.0, first, ended=1.0, last=last, left=left)
    made.body += json.dumps({"prompt": prompt}).encode()
    if not left:
        made.said += json.dumps({"choices": [{"text": text} for text in texts]}).encode()
    return made


def test_late_is_what_siblings_got_after_the_first_right_answer() -> None:
    requests = [
        seen(HEAD, 0, 90, "<none>"),
        seen(HEAD, 0, 100, RIGHT),
        seen(HEAD, 0, 103, left=True),
        seen(HEAD, 101, 105, RIGHT),
        seen(HEAD.replace("T26", "T27"), 0, 400, "<none>"),
    ]
    assert watch.late(requests) == 3 + 4
    child = "<parent> 8 T26 11 7 5 3 <go> <spawn> 11 + 7 = 18 | 5 3 <wait> <child> T26 18 5 3 <go>"
    found = seen(child, 0, 50, "<hit> 18 + 5 = 23 ; 23 + 3 = 26 <end>")
    assert watch.late([found, seen(child, 0, 60, left=True)]) == 10
    assert watch.late([seen(child, 0, 60, left=True)]) == 0


def test_in_one_request_late_is_what_is_longer_than_the_first_right_answer() -> None:
    long = "<try> " * 100 + RIGHT
    assert watch.late([seen(HEAD, 0, 150, RIGHT, "a b", long)]) == 100


def test_a_prompt_is_read_as_text_as_ids_and_in_a_chat() -> None:
    ids = scripted_server.encode(HEAD)
    puzzle = [CountdownProblem((11, 7, 5, 3), 26)]
    for body in ({"prompt": HEAD}, {"prompt": ids}, {"messages": [{"content": "x"}, {"content": HEAD}]}):
        assert watch.puzzles(body) == puzzle
    assert watch.puzzles({"prompt": "hello"}) == watch.puzzles({}) == []


async def test_the_server_notes_answers_and_clients_that_go(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(100))
    monkeypatch.setattr(watch, "_count", lambda name: float(next(steps)) if name == watch.STEPS else 0.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        if body.get("gone"):
            assert (await receive())["type"] == "http.disconnect"
            return
        said = json.dumps({"choices": [{"text": RIGHT}]}).encode()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": said})

    middle, sent = watch.Watch(app), []

    async def ask(path: str, **body: Any) -> None:
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await middle({"type": "http", "path": path}, receive, send)

    await ask("/v1/completions", prompt=HEAD)
    await ask("/v1/completions", prompt=HEAD, gone=True)
    await ask("/watch")
    said = json.loads(sent[-1]["body"])
    assert (said["requests"], said["left"], said["pieces"]) == (2, 1, 1) and said["late"] > 0
    await ask("/watch")
    assert json.loads(sent[-1]["body"])["requests"] == 0


def test_the_server_without_a_model_writes_what_the_model_was_taught() -> None:
    for problem in draw(20, 3):
        head = by_hand.head(problem, "serial")
        text = f"{head} {scripted_server.decode(scripted_server.written(head, random.randrange(1000)))}"
        if text.endswith("<end>"):
            check(text)
        context = by_hand.head(problem, "parent", 8)
        spawned = scripted_server.decode(scripted_server.written(context, 0))
        assert spawned.startswith("<spawn>") and spawned.endswith("<wait>")
        items = spawned.removeprefix("<spawn> ").removesuffix(" <wait>").split(" ; ")
        joins = " | ".join("<none>" for _ in items)
        again = scripted_server.decode(scripted_server.written(f"{context} {spawned} <join> {joins} <go>", 0))
        assert again == "<none> <end>" or not set(items) & set(
            again.split("<spawn> ")[1].split(" <wait>")[0].split(" ; ")
        )
        hit = "<hit> 1 + 2 = 3 ; 3 + 4 = 7"
        done = f"{context} {spawned} <join> {joins[: -len('<none>')]}{hit} <go>"
        assert scripted_server.decode(scripted_server.written(done, 0)) == f"{hit} <end>"
    ids = [1, 2, scripted_server.END, 4]
    assert scripted_server.cut(ids, {}) == ([1, 2, scripted_server.END], "stop")
    assert scripted_server.cut(ids, {"max_tokens": 2}) == ([1, 2], "length")


async def test_by_hand_on_the_server_without_a_model(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    problems = draw(3, 5)
    async with scripted(tmp_path / "log", "--base=0.001", "--each=0") as server:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none") as client:
            run = contenders.each(peers.hand(client.completions.create, 64, by_hand.spawn_join))
            told = await contenders.measured(server, run, problems, 0)
            assert server.generated() == pytest.approx(3 * told.tokens, abs=60)
    assert told.solved == 1 and told.requests > 1 and told.tokens > 70 and 0 <= told.late < told.tokens


async def test_a_library_that_does_not_install_is_left_out_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(samplers, "CACHE", tmp_path)

    async def failing(words: Any, given: bytes, seconds: float) -> tuple[int, bytes, bytes]:
        return 1, b"", b"one\nno matching distribution\n"

    monkeypatch.setattr(samplers, "_run", failing)
    assert await samplers.environment("dspy") == "dspy does not install here: no matching distribution"

    async def hanging(words: Any, given: bytes, seconds: float) -> tuple[int, bytes, bytes]:
        raise TimeoutError

    monkeypatch.setattr(samplers, "_run", hanging)
    assert "did not install within" in str(await samplers.environment("dspy"))
    with pytest.raises(RuntimeError, match="did not end within"):
        await samplers.solved(samplers.WAYS[0], tmp_path, "http://x", [], 1)


async def test_a_child_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(RuntimeError, match="broken"):
        await samplers.solved(samplers.WAYS[0], script, "http://x", [], 1)


def test_the_check_of_other_libraries_is_the_exact_one() -> None:
    rng = random.Random(7)
    for problem in draw(40, 11):
        head = by_hand.head(problem, "serial")
        text = scripted_server.decode(scripted_server.written(head, rng.randrange(10**6)))
        spoilt = text.replace(" = ", f" = {rng.randrange(3)}", 1) if rng.random() < 0.3 else text
        for each in (text, spoilt, text.replace("<hit>", "<hit> <hit>"), "", None):
            puzzle = (problem.target, list(problem.numbers))
            assert samplers_child.right(puzzle, each) == is_right(problem, by_hand.steps_of(each or ""))
    assert samplers_child.prompt_of((26, [3, 11, 5, 7])) == HEAD


def test_the_page_says_what_a_row_lacks_and_what_was_left_out(tmp_path: Path) -> None:
    told = contenders.Measurement(2.0, 0.5, 1000.0, 3.0, 8.0, 20.0)
    none = contenders.Measurement(2.6, 0.5, 900.0, math.nan, math.nan, math.nan)
    votes = contenders.VOTES
    found = {
        f"by hand, {votes}, {compared.WIDE}": [told, told._replace(rate=4.0)],
        f"ours, {votes}, defaults": [told],
        f"ours in process, {votes}": [none],
        "dspy-majority": [told],
    }
    peers_page.write(tmp_path, "--problems 2", 2, found, {"dspy-majority": "no check", "its_hub-beta": "left out: why"})
    page = (tmp_path / "README.md").read_text()
    assert "| ours, votes of 8, defaults | 2.00 | 1.00, aim 1.0 | 50% (9–91) | 1,000 | 3.0 | 8.0 | 20 |  |" in page
    assert "| 2.60 | 1.30, aim 1.15 | 50% (9–91) | 900 | – | – | – |" in page, "one round has no interval"
    assert "| 3.00 (2.00–4.00) | 1.00 (1.00–1.00) | 50% (15–85) |" in page and "in 2 rounds of 2 puzzles" in page
    assert "no check |" in page and "* its_hub-beta: left out: why" in page
    data = json.loads((tmp_path / "data" / "peers.json").read_text())
    assert len(data["rounds"]) == 4 and peers_page.page(data) == page
    one = peers_page.page({**data, "rounds": {"dspy-majority": data["rounds"]["dspy-majority"]}})
    assert "**One round, so no rate and no ratio has an interval**" in one


def test_the_committed_page_is_made_of_its_json() -> None:
    folder = Path(__file__).parents[1] / "experiments" / "peers"
    data = json.loads((folder / "data" / "peers.json").read_text(encoding="utf-8"))
    assert (folder / "README.md").read_text(encoding="utf-8") == peers_page.page(data)

"""The router without plait: sessions, cached prompts, load, engines that come and go."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest

import plait_router
from plait_router import Router

HEADER = "a header that many requests share, and that is long enough to count; " * 8
IDS = list(range(320))


def test_samples_of_a_prompt_share_an_engine_until_it_is_overloaded() -> None:
    router = Router("ab", slots=16)  # slack: a quarter of the slots
    placed = [router.begin(HEADER) for _ in range(16)]
    assert placed[:5] == ["a"] * 5 and placed[5] == "b"
    assert router.running["b"] >= 4, "then both have it, and the less loaded one gets the next"
    for engine in placed:
        router.end(engine)
    assert router.running == {"a": 0, "b": 0}


def test_a_new_prompt_goes_to_the_least_loaded_engine_and_of_equal_ones_to_that_with_fewer_so_far() -> None:
    router = Router("abc")
    placed = []
    for prompt in ("first " * 99, "second " * 99, "third " * 99, "fourth " * 99):
        placed.append(router.begin(prompt))
        router.end(placed[-1])
    assert placed == ["a", "b", "c", "a"]


def test_a_session_stays_and_moves_in_the_tail() -> None:
    router = Router("ab", slots=4)  # slack of a session: three quarters of the slots
    assert [router.begin("one", session="s"), router.begin("quite another", session="s")] == ["a", "a"]
    for _ in range(2):
        router.begin("x", engine="a")
    assert router.choose("one", session="s") == "b", "4 run on a, none on b"
    assert router.begin("one", session="s") == "b"
    router.end("b")
    for _ in range(4):
        router.end("a")
    assert router.choose("one", session="s") == "b", "the session moved"


def test_calls_of_a_program_begin_together_where_nothing_else_decides() -> None:
    router = Router("ab")
    assert router.begin("plan", program="p") == "a"
    assert router.begin("some other program's plan") == "b"
    assert router.choose("a call of it", program="p") == "a"


def test_only_the_latest_sessions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plait_router, "MAX_SESSIONS", 2)
    router = Router("ab")
    router.begin("x", session="s", engine="b")
    router.begin("y", session="t", engine="b")
    router.begin("x", session="s", engine="b")
    router.begin("z", session="u", engine="b")
    for _ in range(4):
        router.end("b")
    assert [router.choose(session=name) for name in "stu"] == ["b", "a", "b"]


def test_an_engine_that_is_down_gets_nothing_and_has_lost_its_cache() -> None:
    router = Router("ab")
    router.begin(HEADER, session="s", engine="a")
    router.set_down("a")
    router.set_down("a")
    assert router.choose(HEADER, session="s") == "b" and router.running == {"b": 0}
    router.begin("x", engine="b")
    router.add("a")
    assert router.running == {"a": 1, "b": 1}, "its request has not ended"
    router.end("a")
    router.end("a")
    assert router.running["a"] == 0
    router.begin("x", engine="b")
    assert router.choose(HEADER) == "a", "the least loaded: it holds nothing"
    router.remove("a")
    router.end("a")
    router.set_down("b")
    with pytest.raises(LookupError, match="no engine is up"):
        router.choose(HEADER)


def test_new_weights_forget_sessions_and_caches() -> None:
    router = Router("ab")
    router.begin(HEADER, session="s", program="p", engine="b")
    router.end("b")
    assert router.choose(HEADER + "?") == "b"
    assert router.forget_contexts() == 2
    assert router.choose(HEADER, session="s", program="p") == "a"


def test_kv_events_replace_what_was_sent() -> None:
    router = Router("ab")
    router.begin(IDS, engine="a")
    assert router.choose(IDS) == "a"
    stored = {"type": "BlockStored", "parent_block_hash": None, "block_size": 16}
    router.record_kv_events("b", [{**stored, "block_hashes": list(range(20)), "token_ids": IDS}])
    router.record_kv_events("a", [{"type": "AllBlocksCleared"}])
    assert router.choose(IDS) == "b", "another client has sent it there, and a has dropped it"
    router.record_kv_events("b", [{"type": "BlockRemoved", "block_hashes": [0]}])
    router.begin("x", engine="b")
    assert router.choose(IDS) == "a", "nobody has it: the least loaded"


def test_a_short_or_a_smaller_half_does_not_count() -> None:
    router = Router("ab")
    router.begin(HEADER, engine="b")
    assert router.choose(HEADER + "x" * (len(HEADER) + 4)) == "a"
    assert router.choose(HEADER[:200]) == "a"


METHODS = {
    "acquire_server": ["request_id"], "require_acquire_fields": [], "require_release_fields": [],
    "release_server": ["server_id", "request_id"], "add_servers": ["servers"], "remove_servers": ["server_ids"],
    "get_all_servers": [], "get_status": [], "clear_sticky_cache": [], "get_total_inflight": [],
}  # fmt: skip
"""Of `verl.workers.rollout.router.RequestLoadBalancer` in verl 0.9.1, with their arguments."""


def test_the_example_has_verls_methods_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    balancer = importlib.import_module("router_in_verl").VerlLoadBalancer
    monkeypatch.delitem(sys.modules, "router_in_verl")
    for name, arguments in METHODS.items():
        known = list(inspect.signature(getattr(balancer, name)).parameters)[1:]
        assert known[: len(arguments)] == arguments, name
    mine = balancer({"a": "A"}, {"router_class": "router_in_verl.VerlLoadBalancer", "slots": 4})
    assert mine.acquire_server("r", prompt_ids=IDS) == ("a", "A")
    mine.add_servers({"b": "B"})
    mine.remove_servers(["a", "never there"])
    mine.release_server("a")
    assert mine.acquire_server("r", prompt_ids=IDS) == ("b", "B"), "its server is gone"
    assert mine.clear_sticky_cache() == {"cleared_entries": 1, "server_loads": {"b": 1}}
    mine.remove_servers(["b"])
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):  # verl retries by these words
        mine.acquire_server("r")

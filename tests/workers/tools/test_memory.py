"""Memory between runs: notes in a store, as tools."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from plait import Orchestrator, Plan, Step, ToolCall
from plait_research.tools.memory import Memory


def call(memory: Memory, tool: str, **args: Any) -> Any:
    """Call a tool in a run of its own, and return its value or the message of its failure."""
    plan = Plan(steps=(Step(name="a", op=ToolCall(tool=tool, args=args)),), output="a")
    with Orchestrator(workers=[], tools=memory.tools(), journal="off") as plait:
        answer = plait.run(plan=plan)
    return answer.value if answer.failure is None else answer.failure.message


def test_a_note_outlives_its_run_and_its_process(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    assert call(Memory(path), "write_note", key="tea", text="Ann drinks green tea.") == "kept 'tea'"
    assert call(Memory(path), "read_note", key="tea") == "Ann drinks green tea."
    call(Memory(path), "write_note", key="tea", text="Ann drinks coffee now.")
    assert call(Memory(path), "read_note", key="tea") == "Ann drinks coffee now."
    assert call(Memory(path), "delete_note", key="tea") == "deleted 'tea'"
    assert "There is no note 'tea'. Call search_notes for the keys." in call(Memory(path), "read_note", key="tea")


def test_a_search_ranks_by_words_and_shows_the_beginnings(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "notes.sqlite")
    memory.store("", "a", "Tea is green.")
    memory.store("", "b", "Green GRASS, green tea, and more." + " long" * 100)
    memory.store("", "c", "Nothing of the kind.")
    found = call(memory, "search_notes", query="green grass tea")
    assert list(found) == ["b", "a"]
    assert found["b"].startswith("Green GRASS")
    assert len(found["b"]) == 200
    assert list(call(memory, "search_notes", query="")) == ["a", "b", "c"]
    assert list(call(memory, "search_notes", query="", limit=1)) == ["a"]
    assert call(memory, "search_notes", query="", limit=-1) == {}


@pytest.mark.parametrize(("key", "text"), [("", "x"), ("k", ""), ("k", "x" * 100), ("k" * 100, "x")])
def test_a_note_without_text_or_beyond_its_size_is_refused(tmp_path: Path, key: str, text: str) -> None:
    memory = Memory(tmp_path / "notes.sqlite", max_chars=100)
    failure = call(memory, "write_note", key=key, text=text)
    assert "Key and text must not be empty and have at most 100 characters." in failure
    assert memory.load("") == {}


def test_the_number_of_notes_is_limited_for_each_tenant(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "notes.sqlite", max_notes=2)
    memory.store("other", "x", "not counted")
    for key in "abb":
        call(memory, "write_note", key=key, text="text")
    failure = call(memory, "write_note", key="c", text="text")
    assert "The memory holds 2 notes, the maximum. Delete one first." in failure
    assert list(memory.load("")) == ["a", "b"]
    call(memory, "delete_note", key="a")
    assert call(memory, "write_note", key="c", text="text") == "kept 'c'"


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "notes.sqlite")
    threads = [threading.Thread(target=memory.store, args=("", f"k{n}", "text")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memory.load("")) == 8


def test_another_store_replaces_two_methods(tmp_path: Path) -> None:
    class Kept(Memory):
        kept: dict[str, str] = {}

        def load(self, tenant: str) -> dict[str, str]:
            return self.kept

        def store(self, tenant: str, key: str, text: str) -> None:
            self.kept[key] = text

    memory = Kept(tmp_path / "none")
    call(memory, "write_note", key="a", text="b")
    assert call(memory, "read_note", key="a") == "b"
    assert not memory.path.exists()

"""The SDK says no: whatever a program hands over by mistake is refused as a `PlaitError` with a sentence, before
anything starts. No error of pydantic's, and no attribute, key, type or index error, reaches the caller."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import plait
from plait import AsyncOrchestrator, Orchestrator, PlaitError, Request
from plait.core.values import Frozen
from plait.workers.scripted import Reply, Scripted

WRONG: tuple[Any, ...] = (
    None, "", "no such thing", "half \ud83d", "\0", b"bytes", 0, -1, 10**30, 1.5, math.nan, math.inf, True, object(),
    [], [None], ["x", 1], {}, {"a": 1}, {1: 2}, (1, 2), {3}, int, Exception, lambda: 1, print, Path("/nowhere/at/all"),
    Reply(text="x"), Exception("x"), iter(()),
)  # fmt: skip
"""One value of each kind; for some parameters one or the other is right, and then the call may work."""
OPTIONS = sorted({*Request.model_fields, "verify", "tokens", "seconds"} - {"text"})


def scripted() -> Scripted:
    return Scripted([Reply(text="answer: 4")])


def refused(call: Callable[[], Any], what: str) -> None:
    """Call it, and let it work or be refused in words."""
    try:
        call()
    except PlaitError as error:
        said = str(error)
        if len(said.split()) < 3 or "validation error" in said or "pydantic" in said:
            raise AssertionError(f"{what}: refused with {said!r}") from error
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def bad_calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every option of a request with every wrong value, and names that are none."""
    for name in OPTIONS:
        for value in WRONG:
            yield name, {name: value}
    for name in ("planer", "temperature", "messages", "model", "Text", "max_tokens"):
        yield name, {name: "x"}


@pytest.mark.parametrize("method", ["run", "plan", "map", "stream"])
def test_a_request(method: str, tmp_path: Path) -> None:
    with Orchestrator(workers=[scripted()], journal="off") as sync:
        calls: dict[str, Callable[..., Any]] = {
            "run": lambda text="q", **options: sync.run(text, **options),
            "map": lambda text="q", **options: sync.map([text], **options),
            "stream": lambda text="q", **options: list(sync.stream(text, **options)),
            "plan": lambda text="q", **options: sync._inner.plan(text, **options),
        }
        call = calls[method]
        for name, options in bad_calls():
            refused(lambda call=call, options=options: call(**options), f"{method}({name}={options[name]!r})")
        for value in WRONG:
            refused(lambda call=call, value=value: call(value), f"{method}({value!r})")
        assert sync.run("still here").answer == "4"


def test_unknown_keywords_are_named_with_a_suggestion() -> None:
    with Orchestrator(workers=[scripted()], journal="off") as sync:
        with pytest.raises(PlaitError, match=r"planer.*planner"):
            sync.run("q", planer="single")
        with pytest.raises(PlaitError, match=r"generation=\{'temperature': 1.0\}"):
            sync.run("q", temperature=1.0)


def test_other_methods() -> None:
    async def all_of_them() -> None:
        async with AsyncOrchestrator(workers=[scripted()], journal="off") as orchestrator:
            handle = await orchestrator.submit("q")
            for value in WRONG:
                for name, call in {
                    "resume": lambda value=value: orchestrator.resume(value),
                    "resume(path=)": lambda value=value: orchestrator.resume("x", path=value),
                    "resume(on_uncertain_side_effect=)": lambda value=value: orchestrator.resume(
                        "x", on_uncertain_side_effect=value
                    ),
                    "reopen": lambda value=value: orchestrator.reopen(value),
                    "answer": lambda value=value: orchestrator.answer(value, value),
                    "Handle.prune": lambda value=value: handle.prune(value),
                    "Handle.cancel": lambda value=value: handle.cancel(value),
                    "Handle.answer": lambda value=value: handle.answer(value, value),
                    "submit(plan=)": lambda value=value: orchestrator.submit("q", plan=value),
                }.items():
                    try:
                        made = call()
                        if inspect.isawaitable(made):
                            await asyncio.wait_for(made, 300)
                    except PlaitError as error:
                        if len(str(error).split()) < 3:
                            raise AssertionError(f"{name}({value!r}): refused with {error}") from error
                    except Exception as error:
                        raise AssertionError(f"{name}({value!r}): {type(error).__name__}: {error}") from error
            await handle

    asyncio.run(all_of_them())


@pytest.mark.parametrize("cls", [Orchestrator, AsyncOrchestrator])
def test_an_orchestrator(cls: type[Any]) -> None:
    names = [
        name for name in inspect.signature(AsyncOrchestrator.__init__).parameters if name not in ("self", "settings")
    ]
    for name in [*names, *plait.Config.model_fields, "modell", "worker_s"]:
        for value in WRONG:
            given = {name: value}
            refused(lambda given=given: cls(**given), f"{cls.__name__}({name}={value!r})")


MODELS = [
    getattr(plait, name)
    for name in plait.__all__
    if isinstance(getattr(plait, name), type) and issubclass(getattr(plait, name), Frozen)
]


@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_a_part_of_a_plan(cls: type[Frozen]) -> None:
    refused(lambda: cls(no_such_field=1), f"{cls.__name__}(no_such_field=1)")
    for field in cls.model_fields:
        for value in WRONG:
            given: dict[str, Any] = {field: value}
            refused(lambda given=given: cls(**given), f"{cls.__name__}({field}={value!r})")


def test_a_tool() -> None:
    for value in WRONG:
        refused(lambda value=value: plait.tool(value), f"tool({value!r})")

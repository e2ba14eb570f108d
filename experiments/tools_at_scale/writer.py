"""A planning model that uses only the tools shown, with errors at known rates: it knows the smallest plan, writes the
steps whose tools it was shown, asks for those that it misses, and spoils each step with a given probability."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import JsonValue

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage

from .catalog import Request, Thing

__all__ = ["ERRORS", "Planner"]

ERRORS = ("tool", "argument", "missing", "part", "reference", "cycle", "unused", "wrong")
"""Kinds of errors, all as likely. `wrong`: another tool with the same arguments, which no check can see."""
_NAMED = re.compile(r'^\{"name": "([^"]+)"', re.MULTILINE)
_FAULTY = re.compile(r"^- (\w+): ", re.MULTILINE)


class Planner(Worker):
    """Writes plans for the questions that it knows; each step that it writes is spoilt with probability `errors`."""

    serves = ("think",)
    models = ()

    def __init__(self, requests: Mapping[str, Request], errors: float, seed: int) -> None:
        self.name, self.slots, self.identity = "planner", 8, "planner"
        self._requests, self._errors, self._seed = requests, errors, seed
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Nothing to do."""

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Answer one prompt."""
        assert isinstance(job.op, ModelCall)
        said = "".join(getattr(part, "text", "") for part in job.op.parts)
        text = self._reply(said)
        tokens = len(text.split())
        yield Result(value=text, finish="stop", usage=Usage(prompt=len(said.split()), completion=tokens))

    async def cancel(self, attempt: int) -> None:
        """Nothing runs for long."""

    async def health(self) -> AsyncIterator[bool]:
        """Ready until closed."""
        yield True
        await self._closed.wait()

    async def close(self) -> None:
        """End."""
        self._closed.set()

    def _reply(self, said: str) -> str:
        request = next(each for text, each in self._requests.items() if f"Question: {text}" in said)
        rng = random.Random(f"{self._seed}/{request.text}/{len(said)}")
        told = set(_NAMED.findall(said))
        tail = said.rpartition("The plan cannot run:")
        if tail[1]:
            return json.dumps({"replace": self._repairs(request, set(_FAULTY.findall(tail[2])), told, rng)})
        missing = [each for each in request.things if each.tool not in told]
        asked = said.count('{"more_tools":') - 1  # the prompt itself has one
        if missing and 0 <= asked < 2 and "more can be found" in said:
            wanted = missing[-1]
            return json.dumps({"more_tools": f"{wanted.verb} a {wanted.noun} at a {wanted.place.replace('_', ' ')}"})
        steps = [self._step(each, request, told, rng) for each in request.things if each.tool in told]
        answer: JsonValue = f"${request.target.noun}.{request.target.kind}"
        return json.dumps({"steps": [each for some in steps for each in some], "answer": answer})

    def _repairs(self, request: Request, faulty: set[str], told: set[str], rng: random.Random) -> dict[str, Any]:
        by_id = {each.noun: each for each in request.things}
        found: dict[str, Any] = {}
        for name in sorted(faulty):
            thing = by_id.get(name)
            found[name] = self._step(thing, request, told, rng) if thing is not None else []
        return found

    def _step(self, thing: Thing, request: Request, told: set[str], rng: random.Random) -> list[dict[str, Any]]:
        nouns = {each.kind: each.noun for each in request.things}
        args: dict[str, Any] = {kind: f"${nouns[kind]}.{kind}" for kind in thing.needs} or {"name": request.name}
        step: dict[str, Any] = {"id": thing.noun, "call": thing.tool, "args": args}
        if rng.random() >= self._errors:
            return [step]
        first = next(iter(args))
        match rng.choice(ERRORS):
            case "tool":
                step["call"] = thing.tool.replace("_", "") + "s"
            case "argument":
                args[f"the_{first}"] = args.pop(first)
            case "missing":
                args.pop(first)
            case "part" if thing.needs:
                args[first] = args[first] + "s"
            case "reference" if thing.needs:
                args[first] = args[first].replace("$", "$the_")
            case "cycle":
                step["after"] = [request.target.noun if thing is not request.target else thing.noun]
            case "unused":
                return [step, {**step, "id": f"{thing.noun}_again"}]
            case "wrong":
                same = [name for name in sorted(told) if name != thing.tool and thing.place in name]
                step["call"] = rng.choice(same) if same else thing.tool
            case _:
                args.pop(first)
        return [step]

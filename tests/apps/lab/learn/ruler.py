"""A model of the tests whose success is known: it solves `Task needs R3` if the rule R3 stands in the prompt. Asked to
reflect, it proposes the rules that the failed runs lacked; of a long prompt it takes in only `CAPACITY` of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Kind, ModelCall, Text
from plait.core.result import Failure, Result, Usage

CAPACITY = 3
"""Rules that one call finds in failed runs."""


class Ruler(Worker):
    """See above. `harm`: it proposes to delete all rules instead."""

    serves: tuple[Kind, ...] = ("think",)

    def __init__(self, *, slots: int = 64, harm: bool = False, name: str = "ruler") -> None:
        self.name, self.slots, self.harm = name, slots, harm
        self._closed = asyncio.Event()

    async def start(self) -> None: ...

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        parts = think.messages or ()
        prompt = "".join(part.text for part in think.parts if isinstance(part, Text)) + "".join(map(str, parts))
        text = self._say(prompt)
        usage = Usage(prompt=len(prompt.split()), completion=max(1, len(text.split())))
        yield Result(value=text, usage=usage)

    def _say(self, prompt: str) -> str:
        if "# Suggestion" in prompt:
            return self._suggest(re.findall(r"RULE (R\d+)", prompt.partition("# Suggestion")[2]), 1000)
        if "# Failed runs" in prompt:
            known = re.findall(r"RULE (R\d+)", prompt.partition("# Failed runs")[0])
            lacking = Counter(re.findall(r"needs (R\d+)", prompt.partition("# Failed runs")[2]))
            return self._suggest(known + [rule for rule, _ in lacking.most_common(CAPACITY)], 1000)
        if "I provided an assistant" in prompt:  # GEPA's prompt: the instruction, then the runs, each fenced
            old, told = prompt.split("```")[1], prompt.split("```")[3]
            wrong = [run for run in told.split("# Example") if "is wrong" in run]
            lacking = [rule for run in wrong for rule in re.findall(r"needs (R\d+)", run)]
            kept = [] if self.harm else [*re.findall(r"RULE (R\d+)", old), *lacking[:CAPACITY]]
            return f"Here:\n```\n{' '.join(f'RULE {rule}.' for rule in dict.fromkeys(kept)) or 'Be brief.'}\n```"
        need = re.search(r"needs (R\d+)", prompt)
        return f"answer: {'yes' if need and f'RULE {need[1]}.' in prompt else 'no'}"

    def _suggest(self, rules: list[str], most: int) -> str:
        kept = "" if self.harm else " ".join(f"RULE {rule}." for rule in list(dict.fromkeys(rules))[:most])
        return f"Here it is: {json.dumps({'reasoning': 'they lacked rules', 'suggestion': {'text': kept}})}"

    async def cancel(self, attempt: int) -> None: ...

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await self._closed.wait()

    async def close(self) -> None:
        self._closed.set()

"""Does code that reads a text answer what no context holds, and with how many tokens?

Needles and counts in texts of a million words, a scripted model of 32,768: one call, `decompose`, a map-reduce over
equal parts, and `recursive`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from plait import Orchestrator
from plait.core.flow import Answerable, Context, Flow
from plait.core.result import Failure
from plait.workers.scripted import Reply, Scripted, words_of
from plait.workers.tools.sandbox import Sandbox, SandboxLimits

from .workload import CONTEXT, Problem, problems, reply, turn

DATA = Path(__file__).parent / "data"
PIECE_WORDS = 30_000


class MapReduce(Flow):
    """Asks about equal parts of whole lines in parallel, and then about the notes."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Cut, ask and join."""
        lines, parts, size = question.splitlines(), [[]], 0
        for line in lines:
            size += len(line.split())
            if size > PIECE_WORDS:
                parts.append([])
                size = len(line.split())
            parts[-1].append(line)
        notes = await ctx.gather(*(ctx.think("Note what matters.\nPIECE\n" + "\n".join(part)) for part in parts))
        return await ctx.think(f"{lines[-1]}\nNOTES\n" + "\n".join(note.text for note in notes))


class Reader(Scripted):
    """The model of the workload, with its limit."""

    def __init__(self) -> None:
        super().__init__([Reply(text="")], max_model_len=CONTEXT)
        self.largest = 0

    def _prepare(self, job: Any) -> Any:
        prepared = super()._prepare(job)
        if isinstance(prepared, Failure):
            return prepared
        think, prompt, _ = prepared
        self.largest = max(self.largest, len(words_of(prompt)))
        text = turn(prompt) if "is the string `context`" in prompt else reply(prompt)
        return think, prompt, Reply(text=text)


CONTENDERS: dict[str, Any] = {
    "one call": "single",
    "decompose": "decompose",
    "map-reduce": MapReduce(),
    "recursive": {"name": "recursive", "options": {"turn": {"max_tokens": 1024}}},
}


def measure(what: str, problem: Problem, sandbox: Sandbox) -> dict[str, object]:
    """Return the row of one contender and problem."""
    reader = Reader()
    with Orchestrator(workers=[reader], tools=sandbox.tools(), journal="off") as plait:
        answer = plait.run(problem.text, planner=CONTENDERS[what])
    right = answer.failure is None and answer.text.strip() == problem.answer
    row = {"what": what, "kind": problem.kind, "right": right, "calls": reader.counts["requests"]}
    return {**row, "prompt": reader.counts["prompt"], "written": reader.counts["generated"], "largest": reader.largest}


def main() -> None:
    """Run each contender on each problem, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="Problems of each kind.")
    seeds = parser.parse_args().seeds
    sandbox = Sandbox("process", limits=SandboxLimits(seconds=120, cpu=60, memory=2048))
    rows: list[dict[str, object]] = []
    for problem in problems(seeds):
        for what in CONTENDERS:
            rows.append(measure(what, problem, sandbox))
            print(json.dumps(rows[-1]), flush=True)
    DATA.mkdir(exist_ok=True)
    (DATA / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

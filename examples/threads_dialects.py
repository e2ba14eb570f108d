"""A model spawns threads of reasoning in the words of ThreadWeaver, and one of them never ends. Needs no model:

    python examples/threads_dialects.py

The scripted worker replaces a model that was trained on the dialect. With a real one leave `workers=` out, and ask
`plait doctor --model DIR --planner threads:dialect=threadweaver` first whether its tokenizer has the tags.
"""

from __future__ import annotations

import asyncio

from plait import AsyncOrchestrator, Plugin
from plait.runtime.client.parallelism import parallelism
from plait.workers.scripted import Reply, Scripted

OUTLINES = """\
<think> Two ways to be sure. <Parallel>
<Outlines>
<Outline> 1: multiply by parts</Outline>
<Outline> 2: add sevens</Outline>
</Outlines>"""

MODEL = [
    Reply(when=r"</Thread>\n\Z", text="</Parallel> The first thread settles it. </think> \\boxed{42}"),
    Reply(when=r"<Thread>\n1:\Z", text=" 6 times 7 is 6 times 5 and 6 times 2: 30 and 12 are 42.</Thread>"),
    Reply(when=r"<Thread>\n2:\Z", text=" 7, 14, 21," + " and again from the start: 7, 14, 21," * 50),
    Reply(text=OUTLINES),
]


async def main() -> None:
    """Ask, and show what ran beside what."""
    planner = Plugin(name="threads", options={"dialect": "threadweaver", "part": {"max_tokens": 40}})
    async with AsyncOrchestrator(workers=[Scripted(MODEL)]) as plait:
        answer = await plait.run("What is 6 times 7?", planner=planner)
    for row in answer.report.steps:
        print(f"{row.state:5} {row.name:8} {row.usage.completion:3} tokens  {row.label}")
    figures = parallelism(answer.report)
    print(f"answer {answer.answer}: {figures.longest} of {figures.total} tokens one after another,", end=" ")
    print(f"acceleration {figures.acceleration:.2f}")


if __name__ == "__main__":
    asyncio.run(main())

# prints "done  child-2   40 tokens"
# prints "answer 42: 66 of 82 tokens"
# prints "acceleration 0.20"

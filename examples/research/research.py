"""Deep research over a folder: agents search and read in parallel, and every sentence of the report is checked.

    python examples/research/research.py                        the question below, with a script in place of a model
    python examples/research/research.py FOLDER "Question?" --base-url http://localhost:8000/v1

A lead asks scouts, which run in parallel and whose conversations are compacted. Each sentence of the report cites a
line that the run has read, `[cable.md:3]`, and the cited lines contain the sentence's numbers. The model corrects
the report once; what is still not supported is left out, and listed.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait import Agent, Orchestrator, ToolContext, tool
from plait.core.errors import ToolError
from plait.core.flow import Answerable, Context, Flow
from plait.core.ops import Plugin
from plait.core.tools.tool import Tool
from plait.workers.scripted import Reply, Scripted

HERE = Path(__file__).parent
QUESTION = "Did the sea cable reduce the power cuts on Skarv, and what did it cost?"
CITATION = re.compile(r"\[([\w.-]+):(\d+)\]")
MAX_FOUND, MAX_LINES = 5, 40


class Library:
    """A folder of text files. It notes which lines each run has seen, in a file, so that a resumed run knows them."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.lines = {path.name: path.read_text("utf-8").splitlines() for path in sorted(folder.glob("*.md"))}
        self.log = log

    def _show(self, run: str, places: Sequence[tuple[str, int]]) -> str:
        with self.log.open("a", encoding="utf-8") as log:
            log.writelines(json.dumps([run, name, number]) + "\n" for name, number in places)
        return "\n".join(f"{name}:{number}: {self.lines[name][number - 1]}" for name, number in places)

    def seen(self, run: str) -> set[tuple[str, int]]:
        """Return the lines that a run has seen."""
        notes = map(json.loads, self.log.read_text("utf-8").splitlines()) if self.log.exists() else ()
        return {(name, number) for owner, name, number in notes if owner == run}

    def faults(self, sentence: str, run: str) -> list[str]:
        """Return the faults of a sentence's citations."""
        cited = [(name, int(number)) for name, number in CITATION.findall(sentence)]
        if not cited:
            return ["it cites no line"]
        seen = self.seen(run)
        unread = [f"{name}:{number} was not read" for name, number in cited if (name, number) not in seen]
        text = " ".join(self.lines[name][number - 1] for name, number in cited if (name, number) in seen)
        numbers = dict.fromkeys(re.findall(r"\d+(?:\.\d+)?", CITATION.sub("", sentence)))
        known = re.findall(r"\d+(?:\.\d+)?", text)
        return [*unread, *(f"the cited lines do not contain {number}" for number in numbers if number not in known)]

    def tools(self) -> list[Tool[..., Any]]:
        """Return the tools of the agents, and the check of a report."""

        @tool
        def search(query: str, ctx: ToolContext) -> str:
            """Return the lines that have most words of the query, each with its document and number."""
            words = query.casefold().split()
            places = [(name, number) for name, lines in self.lines.items() for number in range(1, len(lines) + 1)]
            scores = {at: sum(word in self.lines[at[0]][at[1] - 1].casefold() for word in words) for at in places}
            best = sorted((at for at in places if scores[at]), key=lambda at: -scores[at])[:MAX_FOUND]
            return self._show(ctx.run, best) or "nothing found"

        @tool
        def read(document: str, ctx: ToolContext, start: int = 1) -> str:
            """Read a document from a line on."""
            if document not in self.lines:
                raise ToolError(f"There is no document {document!r:.80}. There are: {', '.join(self.lines)}.")
            end = min(len(self.lines[document]), start + MAX_LINES - 1)
            return self._show(ctx.run, [(document, number) for number in range(max(1, start), end + 1)])

        @tool
        def check_report(report: str, ctx: ToolContext) -> list[dict[str, Any]]:
            """Return the sentences of a report that its citations do not support."""
            checked = [{"sentence": each, "faults": self.faults(each, ctx.run)} for each in sentences(report)]
            return [each for each in checked if each["faults"]]

        return [search, read, check_report]


def sentences(report: str) -> list[str]:
    """Return the sentences of a report without headings; a citation belongs to the sentence before it."""
    lines = (line for line in report.splitlines() if line.strip() and not line.startswith("#"))
    return [part.strip() for line in lines for part in re.split(r"(?<=[.!?\]])\s+(?=[A-Z])", line)]


COMPACTION = {"above_turns": 2, "keep_turns": 1, "mode": "summary"}
SCOUT = Agent(
    name="scout",
    description="finds facts in the documents, with the line of each",
    instructions="Find facts. Search, then read. Answer with sentences that each end with their line, like [a.md:3].",
    tools=("search", "read"),
    planner=Plugin(name="react", options={"compaction": COMPACTION}),
)
LEAD = Agent(
    name="lead",
    instructions="Write a report. Ask scouts, one for each part of the question, in one turn. "
    "Each sentence of the report ends with the lines that support it, like [a.md:3].",
    tools=(),
    agents=(SCOUT,),
)


class Research(Flow):
    """Asks the lead, checks its report, has it corrected once, and leaves out what is still not supported."""

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Return the report."""
        report = str(await LEAD.work(ctx, question))
        faults: Any = await ctx.call("check_report", report=report)
        if faults:
            listed = "\n".join(f"- {each['sentence']} ({'; '.join(each['faults'])})" for each in faults)
            prompt = (
                f"{report}\n\nThese sentences of the report are not supported:\n{listed}\n\nWrite the report again."
            )
            report = (await ctx.think(prompt, name="revise", messages=())).text
            faults = await ctx.call("check_report", report=report)
        for each in faults:
            report = report.replace(each["sentence"], "").replace("  ", " ")
        left_out = [f"- {each['sentence']} ({'; '.join(each['faults'])})" for each in faults]
        sources = sorted({name for name, _ in CITATION.findall(report)})
        parts = [report.strip(), f"Sources: {', '.join(sources) or 'none'}."]
        parts += ["## Left out", *left_out] if left_out else []
        return ctx.answer("\n\n".join(parts), f"{len(sentences(report))} sentences checked, {len(left_out)} left out")


def call(name: str, **args: str) -> str:
    """Return a call as the scripted model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': args})}</tool_call>"


CUTS, COST = "How often was the power cut?", "What did the sea cable cost?"
GOOD = (
    "# Skarv\nThe power was cut 41 times in 2021 and 9 times in 2023 [outages.md:3][outages.md:4]. "
    "The weather was not milder, with 15 storms after 14 [storms.md:2][storms.md:3]. "
    "The cable cost 48 million crowns [cable.md:3]."
)
MODEL = [  # in the place of a model
    Reply(when="These sentences", text=f"{GOOD} Everybody is content."),
    Reply(when="Write a report.*Tool:.*Tool:", text=GOOD.replace("48 million", "50 million")),
    Reply(when="Write a report", text=call("scout", question=CUTS) + call("scout", question=COST)),
    Reply(when="messages above are removed", text="41 cuts in 2021, 9 in 2023 [outages.md:3][outages.md:4]."),
    Reply(
        when="How often.*(storms.md:1:|A summary of them)",
        text="41, then 9 [outages.md:3][outages.md:4]; 15 storms [storms.md:3].",
    ),
    Reply(when="How often.*outages.md:2:", text=call("read", document="storms.md")),
    Reply(when="How often.*outages.md:4:", text=call("read", document="outages.md")),
    Reply(when="How often", text=call("search", query="power cuts hours")),
    Reply(when="sea cable cost.*cable.md:3:", text="48 million crowns [cable.md:3]."),
    Reply(when="sea cable cost", text=call("search", query="cable cost million crowns")),
]


def main() -> None:
    """Run the research and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "documents")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--base-url", help="address of a model server; by default a script answers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tools = Library(given.folder, Path(folder) / "seen.jsonl").tools()
        where: Any = {"base_url": given.base_url} if given.base_url else {"workers": [Scripted(MODEL)]}
        with Orchestrator(**where, tools=tools) as plait:
            answer = plait.run(given.question, planner=Research())
    print(answer.text)
    print(f"\n{answer.why}")
    steps = [step.name for step in answer.trace]
    print("compactions:", sum("compacted" in name for name in steps))


if __name__ == "__main__":
    main()

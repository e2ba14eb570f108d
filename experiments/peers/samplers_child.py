"""Other libraries' ways to take eight samples of a puzzle, in their own environments: `python samplers_child.py NAME`.

Reads a JSON object (`url`, `puzzles` of target and numbers, `in_flight`) and prints one: `seconds`, `cpu`, and the text
that each puzzle got. It imports nothing of plait. Every library gets the same prompt as the last message of a chat,
temperature 1 and 512 tokens, whole answers, and as many puzzles at a time. A library that takes a check of answers gets
the exact one; the others vote on what an answer claims. Nothing is cached.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

N, TOKENS, MODEL = 8, 512, "countdown"
Puzzle = tuple[int, list[int]]
Solve = Callable[[Puzzle], Awaitable[str]]
_STEP = re.compile(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)")


def prompt_of(puzzle: Puzzle) -> str:
    """Return the prompt of a line of reasoning."""
    return f"<serial> 8 T{puzzle[0]} {' '.join(map(str, sorted(puzzle[1], reverse=True)))} <go>"


def claim(text: str | None) -> str:
    """Return the steps that an answer claims: what is voted on."""
    return (text or "").rpartition("<hit>")[2].replace("<end>", "").strip() if "<hit>" in (text or "") else ""


def right(puzzle: Puzzle, text: str | None) -> bool:
    """Return whether an answer's steps are exact, use each number once and reach the target."""
    left = list(puzzle[1])
    steps = _STEP.findall(claim(text))
    for a, op, b, c in ((int(a), op, int(b), int(c)) for a, op, b, c in steps):
        for number in (a, b):
            if number not in left:
                return False
            left.remove(number)
        exact = b * c == a if op == "/" else {"+": operator.add, "-": operator.sub, "*": operator.mul}[op](a, b) == c
        if not exact:
            return False
        left.append(c)
    return bool(steps) and left == [puzzle[0]]


async def in_order(solve: Solve, puzzles: list[Puzzle], in_flight: int) -> list[str]:
    """Number of puzzles solved at a time."""
    room = asyncio.Semaphore(in_flight)

    async def one(puzzle: Puzzle) -> str:
        async with room:
            return await solve(puzzle)

    return await asyncio.gather(*map(one, puzzles))


def its_hub(name: str, url: str) -> tuple[Solve, Callable[[], Awaitable[None]]]:
    """its_hub: `beta` votes and stops by the Beta rule, giving the rest up; `best-of` has the check and waits."""
    from its_hub.api import AbstractOutcomeRewardModel  # pyright: ignore[reportMissingImports]
    from its_hub.core.algorithms.beta_self_consistency import (  # pyright: ignore[reportMissingImports]
        BetaSelfConsistency,
    )
    from its_hub.core.algorithms.bon import BestOfN  # pyright: ignore[reportMissingImports]
    from its_hub.core.lms.openai_lm import OpenAICompatibleLanguageModel  # pyright: ignore[reportMissingImports]

    lm = OpenAICompatibleLanguageModel(url, "none", MODEL, temperature=1.0, max_tokens=TOKENS)

    class Check(AbstractOutcomeRewardModel):
        def __init__(self, puzzle: Puzzle) -> None:
            self.puzzle = puzzle

        async def ascore(self, conversations: Any, **_: Any) -> Any:
            if conversations and isinstance(conversations[0], list):
                return [float(right(self.puzzle, each[-1].content)) for each in conversations]
            return float(right(self.puzzle, conversations[-1].content))

        def score(self, conversations: Any, **_: Any) -> Any:
            raise NotImplementedError

    async def solve(puzzle: Puzzle) -> str:
        votes = BetaSelfConsistency(consistency_space_projection_func=claim)
        way = votes if name == "its_hub-beta" else BestOfN(Check(puzzle))
        return (await way.ainfer(lm, prompt_of(puzzle), N))["content"]

    return solve, lm.close


def langgraph(url: str) -> tuple[Solve, Callable[[], Awaitable[None]]]:
    """LangGraph: `Send` to eight nodes, then one that takes the first right one by the check."""
    import operator as op
    from typing import Annotated, TypedDict

    from langgraph.graph import END, START, StateGraph  # pyright: ignore[reportMissingImports]
    from langgraph.types import Send  # pyright: ignore[reportMissingImports]
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none", timeout=300)
    State = TypedDict("State", {"puzzle": Any, "texts": Annotated[list[str], op.add], "answer": str})  # noqa: UP013

    async def sample(state: Any) -> Any:
        message: Any = {"role": "user", "content": prompt_of(state["puzzle"])}
        done = await client.chat.completions.create(
            model=MODEL,
            messages=[message],
            temperature=1.0,
            max_tokens=TOKENS,
        )
        return {"texts": [done.choices[0].message.content or ""]}

    def choose(state: Any) -> Any:
        good = (text for text in state["texts"] if right(state["puzzle"], text))
        return {"answer": next(good, state["texts"][0])}

    graph: Any = StateGraph(State)
    graph.add_node("sample", sample)
    graph.add_node("choose", choose)
    graph.add_conditional_edges(START, lambda state: [Send("sample", {"puzzle": state["puzzle"]})] * N, ["sample"])
    graph.add_edge("sample", "choose")
    graph.add_edge("choose", END)
    made = graph.compile()

    async def solve(puzzle: Puzzle) -> str:
        return (await made.ainvoke({"puzzle": puzzle, "texts": [], "answer": ""}))["answer"]

    return solve, client.close


def dspy(name: str, url: str, in_flight: int) -> tuple[Solve, Callable[[], Awaitable[None]]]:
    """dspy: `majority` of eight completions; `best-of` has the check and stops at a right one, one call
    after another. Its prompts would be strange to this model, so an adapter passes ours through."""
    import dspy as library  # pyright: ignore[reportMissingImports]

    class Through(library.Adapter):
        def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
            return [{"role": "user", "content": inputs["question"]}]

        def parse(self, signature: Any, completion: str) -> Any:
            return {"answer": completion or ""}

    lm = library.LM(
        f"openai/{MODEL}", api_base=url, api_key="none", temperature=1.0, max_tokens=TOKENS, cache=False, num_retries=0
    )
    library.configure(lm=lm, adapter=Through())
    ask = library.Predict("question -> answer")
    pool = ThreadPoolExecutor(in_flight)

    def solved(puzzle: Puzzle) -> str:
        question = prompt_of(puzzle)
        if name == "dspy-majority":
            votes = ask(question=question, config={"n": N, "temperature": 1.0})
            return library.majority(votes, normalize=lambda text: claim(text) or None).answer
        best = library.BestOfN(ask, N, lambda _, found: float(right(puzzle, found.answer)), threshold=1.0)
        return best(question=question).answer

    async def solve(puzzle: Puzzle) -> str:
        return await asyncio.get_running_loop().run_in_executor(pool, solved, puzzle)

    async def close() -> None:
        pool.shutdown()

    return solve, close


def optillm(name: str, url: str) -> tuple[Solve, Callable[[], Awaitable[None]]]:
    """optillm, a proxy of its own process: `majority_voting` of eight answers of one call; `self_consistency` asks one
    after another, and takes the largest group of alike texts."""
    from openai import AsyncOpenAI

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(Path(sys.executable).with_name("optillm")), "--base-url", url, "--port", str(port)]
    proxy = subprocess.Popen(
        words, env={**os.environ, "OPENAI_API_KEY": "none"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=300, max_retries=0)
    way = name.removeprefix("optillm-")
    extra = {"k": N} if way == "majority_voting" else {}

    async def solve(puzzle: Puzzle) -> str:
        done = await client.chat.completions.create(
            model=f"{way}-{MODEL}",
            messages=[{"role": "user", "content": prompt_of(puzzle)}],
            temperature=1.0,
            max_tokens=TOKENS,
            extra_body=extra,
        )
        return done.choices[0].message.content or ""

    async def close() -> None:
        await client.close()
        proxy.terminate()
        proxy.wait()

    return solve, close


async def measure(name: str, url: str, puzzles: list[Puzzle], in_flight: int) -> dict[str, Any]:
    """Solve the puzzles, and return the time and the results."""
    library = name.partition("-")[0]
    solve, close = {
        "its_hub": lambda: its_hub(name, url),
        "langgraph": lambda: langgraph(url),
        "dspy": lambda: dspy(name, url, in_flight),
        "optillm": lambda: optillm(name, url),
    }[library]()
    cpu, start = time.process_time(), time.perf_counter()
    texts = await in_order(solve, puzzles, in_flight)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    await close()
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": seconds, "cpu": cpu + others.ru_utime + others.ru_stime, "texts": texts}


if __name__ == "__main__":
    told = json.load(sys.stdin)
    puzzles = [(target, numbers) for target, numbers in told["puzzles"]]
    found = asyncio.run(measure(sys.argv[1], told["url"], puzzles, told["in_flight"]))
    print("\n" + json.dumps(found))

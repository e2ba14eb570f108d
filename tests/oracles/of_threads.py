"""Dialects of threads: the tokens of the released models, and whole documents in the form they were trained on."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from plait.planners.threads.threads.dialects import load
from plait_research.planners.think_summarize import ThinkSummarize
from tests.oracles.harness import Oracle, take
from tests.planners.test_threads_dialects import ASK, run
from tests.planners.token_worker import TokenWorker

MULTIVERSE = ("Infini-AI-Lab/Multiverse", "4cbc487ac55da82d768737cbfc429bfd6a17b6fd", "Apache-2.0")
PARATHINKER = ("MobileLLM/ParaThinker", "6d98fae21e824a61971c101d0496ce63d187c51e", "none given")
APR = ("Parallel-Reasoning/APR", "557792831087b701e0d41912eaf785c8d73e6f69", "Apache-2.0")
NPR = ("bigai-nlco/Native-Parallel-Reasoner", "e148ad5d3c4ffa094602ed788babb1e2b6d6b492", "MIT")
THREADWEAVER = ("facebookresearch/threadweaver", "26622324ad0fcad9be53a692d0a8f214a8fa5ee8", "CC-BY-NC-4.0, Apache-2.0")


# --- tokens ----------------------------------------------------------------------------------------------------------


def listed(file: Path, name: str) -> list[str]:
    """Return the list that is assigned to a name anywhere in a file: the tokens that training adds."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == name for each in node.targets
        ):
            if isinstance(node.value, ast.List):
                return ast.literal_eval(node.value)
    raise LookupError(f"{file} assigns no list to {name}")


def tokens(path: str, name: str, leave: str = "") -> Callable[[Path], Callable[[Any], Any]]:
    """Return a reader of the added tokens in a file of the repository, without those of thoughts and padding."""
    drop = re.compile(leave or "$^")

    def theirs(clone: Path) -> Callable[[Any], Any]:
        found = sorted(each for each in listed(clone / path, name) if not drop.search(each))
        return lambda _: found

    return theirs


def parathinker(_: Any) -> list[str]:
    """Return the tags that `think_summarize:tags` writes or stops at, for as many paths as it takes."""
    from tests.planners.scripted_runs import brief, made

    plan = made(ThinkSummarize(n=8, dialect="parathinker"), brief())
    said = [str(step.op.begin) for step in plan.steps if step.op.kind == "think"]
    ends = [stop for step in plan.steps if step.op.kind == "think" for stop in step.op.sampling.stop]
    return sorted([*said, *ends, "<summary>", "</summary>"])


# --- documents -------------------------------------------------------------------------------------------------------

WORDS = "so then we try the other half of it first and see what is left".split()


def _text(random: Random) -> str:
    lines = [" ".join(random.choices(WORDS, k=random.randint(2, 6))) for _ in range(random.randint(1, 2))]
    return "\n".join(lines)


def _block(random: Random, depth: int) -> dict[str, Any]:
    """Return a block of paths, some with blocks of their own down to a depth; the first goes all the way."""
    paths = []
    for number in range(random.randint(1, 3)):
        deeper = depth > 1 and (number == 0 or random.random() < 0.3)
        paths.append({"text": _text(random), "block": _block(random, depth - 1) if deeper else None})
    return {"paths": paths, "end": _text(random), "after": _text(random)}


def _documents(random: Random) -> Iterator[dict[str, Any]]:
    number = 0
    while True:
        depth = 1 + number % 5
        number += 1
        yield {"depth": depth, "before": _text(random), "block": _block(random, depth)}


def multiverse_theirs(clone: Path) -> Callable[[Any], Any]:
    etree = importlib.import_module("lxml.etree")

    names = (
        "modify_xml_tree", "serialize_xml_formatted", "extract_goal_descriptions",
        "validate_parallel_internal_structure",
    )  # fmt: skip
    space = take(clone / "data/parse.py", *names, LET=etree, re=re, os=os, sys=sys, input_file_path="")

    def add(parent: Any, block: dict[str, Any]) -> None:
        element = etree.SubElement(parent, "Parallel")
        goal = etree.SubElement(element, "Goal")
        goal.text = "\n".join(f"Path {n}: way {n}" for n in range(1, len(block["paths"]) + 1))
        for each in block["paths"]:
            path = etree.SubElement(element, "Path")
            path.text = each["text"]
            if each["block"] is not None:
                add(path, each["block"])
        etree.SubElement(element, "Conclusion").text = block["end"]
        element.tail = block["after"]

    def run_(case: dict[str, Any]) -> str:
        root = etree.Element("Think")
        root.text = case["before"]
        add(root, case["block"])
        with contextlib.redirect_stderr(io.StringIO()):
            for parallel in root.findall("Parallel"):
                space["modify_xml_tree"](parallel)
        return space["serialize_xml_formatted"](root, {}, indent_str="")

    return run_


HEADER = re.compile(r"\n<Path>\n([0-9.]+):\Z")


def multiverse_ours(_: Any, document: str) -> str:
    """Have a model that knows the document write it, in threads, and return the last context as the parent read it."""
    opening = load("multiverse").opening(ASK, ASK)

    def model(context: str) -> str:
        written = context.removeprefix(opening)
        if document.startswith(written):
            return document[len(written) :]
        header = HEADER.search(written)
        if header is not None:
            return document[document.index(header[0]) + len(header[0]) :]
        # a thread goes on behind its own block: what stands in the document behind the end of that block
        at = max(document.find(written[-size:]) + size for size in (400, 200, 100) if written[-size:] in document)
        return document[at:]

    table = load("multiverse")
    worker = TokenWorker(model, table.tags)
    if run(worker, dialect="multiverse").status != "done":
        return ""
    last = max((step for step in worker.prompts if step.startswith("round-")), key=lambda step: int(step[6:]))
    read = worker.tokenizer.decode((*worker.prompts[last], *worker.outputs[last]))
    return read.removeprefix(opening)


# --- APR -------------------------------------------------------------------------------------------------------------


def _searches(random: Random) -> Iterator[dict[str, Any]]:
    """A search that generates nodes and sends threads to some, and what these write. The target is the sum."""
    while True:
        numbers = random.sample(range(1, 25), 4)
        target, lines = sum(numbers), list[str]()
        nodes: dict[str, tuple[list[int], str]] = {}
        for number in range(random.randint(1, 6)):
            a, b = random.sample(numbers, 2)
            left = [each for each in numbers if each not in (a, b)] + [a + b]
            lines.append(f"Exploring Operation: {a}+{b}={a + b}, Resulting Numbers: {left}")
            lines.append(f"Generated Node #0,{number}: {target}:{left} Operation: {a}+{b}={a + b}")
            nodes[f"0,{number}"] = (left, f"{a}+{b}={a + b}")
        called = random.sample(list(nodes), random.randint(1, len(nodes)))
        writes = [
            _solved(node, nodes[node][0], nodes[node][1], target) if random.random() < 0.4 else "\nNo solution found.\n"
            for node in called
        ]
        yield {"numbers": numbers, "target": target, "lines": lines, "called": called, "writes": writes}


def _solved(node: str, left: list[int], first: str, target: int) -> str:
    """Return what a thread writes that reaches the goal: the end of its search, and its path."""
    a, b, c = left
    done = [first, f"{a}+{b}={a + b}"]
    return (
        f"\n{target},{target} equal: Goal Reached\nMoving to Node #{node}\n"
        f"Current State: {target}:{left}, Operations: {done[:1]}\n"
        f"Exploring Operation: {done[1]}, Resulting Numbers: {[c, a + b]}\n"
        f"Generated Node #{node},0: {target}:{[c, a + b]} Operation: {done[1]}\nMoving to Node #{node},0\n"
        f"Current State: {target}:{[c, a + b]}, Operations: {done}\n"
        f"Exploring Operation: {c}+{a + b}={target}, Resulting Numbers: {[target]}\n"
        f"{target},{target} equal: Goal Reached\n"
    )


def _start(case: dict[str, Any]) -> str:
    return f"Moving to Node #0\nCurrent State: {case['target']}:{case['numbers']}, Operations: []"


def _trace(case: dict[str, Any]) -> str:
    calls = [f"<Start Sub Search {i} at level 1> Moving to Node #{node}" for i, node in enumerate(case["called"])]
    said = "\n".join([*case["lines"], "<Calling Sub Searches>", *calls, "<End Calling Sub Searches>"])
    return f"{_start(case)}\n{said}"


def apr_theirs(clone: Path) -> Callable[[Any], Any]:
    names = (
        "get_search_result", "get_subsearch_info", "_get_subsearch_info", "get_main_trace_after_sub_search",
    )  # fmt: skip
    space = take(clone / "src/eval/parallel_infernce_utils.py", *names)

    def run_(case: dict[str, Any]) -> dict[str, Any]:
        prompts, nodes = space["get_subsearch_info"](_trace(case))
        found = [space["get_search_result"](a + b) for a, b in zip(prompts, case["writes"], strict=True)]
        return {"threads": prompts, "onward": space["get_main_trace_after_sub_search"](_trace(case), nodes, found)}

    return run_


def apr_ours(case: dict[str, Any]) -> dict[str, Any]:
    trace = _trace(case)

    def model(context: str) -> str:
        if context == _start(case):
            return trace[len(context) :]
        node = re.match(r"Moving to Node #([0-9,]+)", context)
        if node is not None and node[1] in case["called"]:
            return case["writes"][case["called"].index(node[1])]
        return ""

    worker = TokenWorker(model)
    puzzle = f"{' '.join(map(str, case['numbers']))} -> {case['target']}"
    run(worker, puzzle, "countdown", dialect="apr", early=False, stop_on_verified=False)
    texts = {name: worker.tokenizer.decode(prompt) for name, prompt in worker.prompts.items()}
    count = len(case["called"])
    return {"threads": [texts[f"child-{i}"] for i in range(1, count + 1)], "onward": texts.get("round-2", "")}


# --- ThreadWeaver ----------------------------------------------------------------------------------------------------


def _rounds(random: Random) -> Iterator[dict[str, Any]]:
    """What a model writes in sequence, each but the last with outlines, and what each thread writes."""
    while True:
        legs, threads = [], {}
        for number in range(random.randint(1, 3)):
            items = random.sample(range(1, 6), random.randint(1, 4))
            listed = "".join(f"\n<Outline> {each}: way {each}</Outline>" for each in items)
            legs.append(f" {_text(random)}\n<Parallel>\n<Outlines>{listed}\n</Outlines>")
            for each in items:
                cut = random.random() < 0.05
                threads[f"{number} {each}"] = f" {_text(random)}" + ("" if cut else "</Thread>")
        yield {"legs": [*legs, f"</Parallel>\n{_text(random)} \\boxed{{4}}"], "threads": threads}


def _writes(case: dict[str, Any]) -> Callable[[str], str]:
    """Return a model that writes what the case says: how many lists the context has tells where it is."""

    def model(context: str) -> str:
        number = context.count("</Outlines>")
        header = re.search(r"<Thread>\n(\d+):\Z", context)
        return case["legs"][number] if header is None else case["threads"][f"{number - 1} {header[1]}"]

    return model


def weaver_theirs(clone: Path) -> Callable[[Any], Any]:
    import concurrent
    import concurrent.futures as futures

    file = clone / "threadweaver_sft/src/simple_eval.py"

    def run_(case: dict[str, Any]) -> str:
        model = _writes(case)

        def until(name: str, tokenizer: Any, prompt: str, stop: list[str], **_: Any) -> tuple[str, str, str | None]:
            said = model(prompt)
            at = said.find(stop[0])
            text, hit = (said[: at + len(stop[0])], stop[0]) if at >= 0 else (said, None)
            return text, prompt + text, hit

        space = take(
            file, "branching_generate", re=re, concurrent=concurrent, ThreadPoolExecutor=futures.ThreadPoolExecutor,
            generate_until_any=until, thread_end="</Thread>", outlines_end="</Outlines>", reasoning_parallel_workers=2,
            print=lambda *_: None, colored=lambda text, _: text,
        )  # fmt: skip
        sampling = {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": 100}
        return space["branching_generate"]("model", None, ASK, sampling)

    return run_


def weaver_ours(case: dict[str, Any]) -> str:
    table = load("threadweaver")
    worker = TokenWorker(_writes(case), table.tags)
    run(worker, ASK, dialect="threadweaver")
    rounds = [step for step in worker.prompts if step.startswith("round-")]
    last = max(rounds, key=lambda step: int(step[6:]))
    return worker.tokenizer.decode((*worker.prompts[last], *worker.outputs[last]))


def _tokens(
    name: str, of: tuple[str, str, str], file: str, listing: str, ours: Any, leave: str = "", through: str = ""
) -> Oracle:
    theirs = tokens(file, listing, leave)
    return Oracle(name, *of, f"{file} {listing}", lambda _: iter([{}]), theirs, ours, number=1, through=through)


ORACLES = [
    _tokens(
        "tokens-parathinker", PARATHINKER, "train/train_script.py", "special_tokens", parathinker, "pad", "planner",
    ),
    _tokens(
        "tokens-multiverse", MULTIVERSE, "train/utils.py", "new_special_tokens",
        lambda _: sorted(load("multiverse").tags), "Think",
    ),
    _tokens(
        "tokens-npr", NPR, "npr-beta/train/utils.py", "new_special_tokens", lambda _: sorted(load("npr").tags), "think",
    ),
    _tokens(
        "tokens-threadweaver", THREADWEAVER, "threadweaver_sft/src/utils.py", "new_special_tokens",
        lambda _: sorted(load("threadweaver-conclusion").tags), "Think",
    ),
    Oracle(
        "multiverse-documents", *MULTIVERSE, "data/parse.py modify_xml_tree, serialize_xml_formatted", _documents,
        multiverse_theirs, multiverse_ours, number=60, plays=True, through="planner",
    ),
    Oracle(
        "apr-traces", *APR, "src/eval/parallel_infernce_utils.py get_subsearch_info, get_main_trace_after_sub_search",
        _searches, apr_theirs, apr_ours, number=60, through="planner",
    ),
    Oracle(
        "threadweaver-contexts", *THREADWEAVER, "threadweaver_sft/src/simple_eval.py branching_generate", _rounds,
        weaver_theirs, weaver_ours, number=60, through="planner",
        differs="a thread that is cut off is closed and read; theirs ends there",
    ),
]  # fmt: skip

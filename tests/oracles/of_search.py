"""Searches: shares and prunings of ETS and REBASE, rounds of search-and-learn, odds of its_hub, order of ToolBench."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum as _Enum
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.policies.search.beams import Beam
from plait.policies.search.mcts import Dfs
from plait_research.policies.search.leaf_sampling import Ets, Particle, Rebase, draw_probabilities
from plait_research.policies.search.trees import Dvts
from tests.oracles.harness import Oracle, take

ETS = ("SqueezeAILab/ETS", "ac937a72319fae68b2f4e9c439d3a07c85377f1f", "none given")
SAL = ("huggingface/search-and-learn", "6f81cac8b1ca4c4be9fabefc27a856c928f3ae7f", "Apache-2.0")
ITS_HUB = ("Red-Hat-AI-Innovation-Team/its_hub", "e4d00d1a342c7b4dadc201a7d3648237180adf22", "Apache-2.0")
TOOLBENCH = ("OpenBMB/ToolBench", "d56fdd89faf8c91fa135090b212bb9057ee5cfc2", "Apache-2.0")


# --- REBASE, ETS -----------------------------------------------------------------------------------------------------


def _depths(random: Random) -> Iterator[dict[str, Any]]:
    """A depth: parents of its leaves in a tree, the leaves' scores and steps, the width that is left."""
    while True:
        parents: list[int] = [-1]
        edge = [0]
        for _ in range(random.randint(1, 3)):
            below = []
            for node in edge:
                for _ in range(random.randint(1, 3)):
                    below.append(len(parents))
                    parents.append(node)
            edge = below[:16]
            parents = parents[: max(edge) + 1]
        scores = random.sample(range(1, 1000), len(edge))
        steps = [f"step {random.randrange(max(1, len(edge) // 2))}" for _ in edge]
        yield {
            "parents": parents, "leaves": edge, "scores": [each / 1000 for each in scores], "steps": steps,
            "width": random.choice([4, 8, 16]),
        }  # fmt: skip


def _theirs(clone: Path, method: str, case: dict[str, Any], **given: Any) -> list[int]:
    """Run a method of their tree on a depth; return the children of each leaf."""
    import numpy as np
    import torch

    nodes: list[Any] = []
    for number, parent in enumerate(case["parents"]):
        above = nodes[parent] if parent >= 0 else None
        text = ("" if above is None else above.text) + (
            case["steps"][case["leaves"].index(number)] if number in case["leaves"] else f"({number})"
        )
        node = SimpleNamespace(id=number, parent=above, text=text, num_step_tokens=1)
        node.get_text = lambda node=node: node.text
        nodes.append(node)
    lock, code = contextlib.nullcontext(), clone / "rebase.py"
    rule = take(code, f"Tree.{method}", torch=torch, math=math, np=np, lock=lock, global_kv_size=0, **given)
    tree = SimpleNamespace(
        paras={"softmax_temperature": 0.2}, lambdac=1.0, lambdas=1.5, get_kv_size=lambda nodes: 0,
        model=SimpleNamespace(encode=lambda texts, batch_size: [_axis(text) for text in texts]),
    )  # fmt: skip
    leaves = [nodes[each] for each in case["leaves"]]
    picked, counts = rule[method](tree, leaves, list(case["scores"]), case["width"], 2)
    of = Counter({node.id: int(count) for node, count in zip(picked, counts, strict=True)})
    return [of[each] for each in case["leaves"]]


def _axis(text: str) -> list[float]:
    """Return an embedding in which different steps are at right angles."""
    return [float(place == int(text.rpartition(" ")[2])) for place in range(64)]


def rebase_theirs(clone: Path) -> Callable[[Any], Any]:
    return lambda case: _theirs(clone, "select_softmax", case)


def rebase_ours(case: dict[str, Any]) -> list[int]:
    return _settled(Rebase(per_depth=case["width"]), case)


def ets_theirs(clone: Path) -> Callable[[Any], Any]:
    import importlib

    pulp, cluster = importlib.import_module("pulp"), importlib.import_module("scipy.cluster.hierarchy")
    names = ("LpMaximize", "LpProblem", "LpVariable", "lpSum", "PULP_CBC_CMD")
    given = {name: getattr(pulp, name) for name in names}
    given |= {"linkage": cluster.linkage, "fcluster": cluster.fcluster}
    return lambda case: _theirs(clone, "select_softmax_costmodel", case, **given)


def ets_ours(case: dict[str, Any]) -> list[int]:
    return _settled(Ets(variant="paper", per_depth=case["width"]), case)


def _settled(search: Search, case: dict[str, Any]) -> list[int]:
    """Return the number of children that a search gives to each leaf of a depth."""
    nodes: list[SearchNode] = []
    for number, parent in enumerate(case["parents"]):
        node = SearchNode(f"n{number:03}", nodes[parent] if parent >= 0 else None, tokens=1, step=f"({number})")
        if number in case["leaves"]:
            place = case["leaves"].index(number)
            node.step, node.score = case["steps"][place], case["scores"][place]
        nodes.append(node)
    rounds: Any = search.frontier(SearchTree(Random(0), 16))
    counts = Counter(rounds.settle([nodes[each] for each in case["leaves"]]))
    return [counts[nodes[each]] for each in case["leaves"]]


# --- search-and-learn ------------------------------------------------------------------------------------------------


def play(search: Search, case: dict[str, Any], rounds: int, depth: int) -> list[list[str]]:
    """Drive a search; return for each depth whose children were written, as paths of child numbers."""
    tree = SearchTree(Random(0), 64)
    frontier: Frontier = search.frontier(tree)
    wrote: list[list[str]] = []
    for _ in range(rounds):
        came: list[SearchNode] = []
        while (parent := frontier.take()) is not None:
            index = len(parent.children) + 1
            child = SearchNode(f"{parent.name}.{index}", parent, parent.depth + 1, index)
            child.key = child.step = child.name
            parent.children.append(child)
            tree.nodes.append(child)
            tree.pending[child] = None
            came.append(child)
        if not came or came[0].depth > depth:
            break
        wrote.append(sorted(_path(child.name) for child in came))
        for child in came:
            tree.scored(child, _score(case, _path(child.name)))
            tree.pending.pop(child)
            frontier.ended(child)
    return wrote


def _path(name: str) -> str:
    return name.removeprefix("n.")


def _score(case: dict[str, Any], path: str) -> float:
    """Return the score of a path of child numbers: a random one that the case fixes."""
    return Random(f"{case['seed']} {path}").random()


def _widths(random: Random) -> Iterator[dict[str, Any]]:
    while True:
        branch = random.choice([2, 4])
        yield {"seed": random.randrange(10**6), "branch": branch, "keep": random.choice([1, 2, 4]), "rounds": 3}


def _sal(clone: Path, file: str, name: str, case: dict[str, Any], n: int) -> list[list[str]]:
    """Run a search of theirs on a tree in which a text is the path of its children's numbers."""
    import dataclasses
    import logging
    from collections import defaultdict

    import numpy as np

    beams = take(clone / "src/sal/search/utils.py", "Beam", dataclass=dataclasses.dataclass)
    scores = take(clone / "src/sal/utils/score.py", "aggregate_scores")
    wrote: list[list[str]] = []
    counts: Counter[str] = Counter()

    def generate(convs: list[Any], lookahead: int, llm: Any, params: Any, width: int) -> list[Any]:
        made, results = [], []
        for text in convs:
            texts = []
            for _ in range(width):
                counts[text] += 1
                texts.append(f"{counts[text]}.")
            made += [(text + each).removesuffix(".") for each in texts]
            results.append(
                SimpleNamespace(
                    next_texts=texts, lookahead_texts=texts, stop_reasons=["stop"] * width, completion_tokens=1
                )
            )
        wrote.append(sorted(made))
        return results

    space = take(
        clone / f"src/sal/search/{file}.py", name, np=np, copy=copy, itertools=itertools, defaultdict=defaultdict,
        logger=logging.getLogger("sal"), tqdm=lambda each, **_: each, SamplingParams=lambda **_: None,
        build_conv=lambda prompt, text, system: text, generate_k_steps=generate, Beam=beams["Beam"],
        aggregate_scores=scores["aggregate_scores"],
    )  # fmt: skip
    config = SimpleNamespace(
        n=n, n_beams=case["keep"], beam_width=case["branch"], num_iterations=case["rounds"] + 1, temperature=1.0,
        max_tokens=1, top_p=1.0, system_prompt="", custom_chat_template=None, lookahead=0, agg_strategy="last",
        filter_duplicates=False, sort_completed=False,
    )  # fmt: skip
    tokenizer = SimpleNamespace(apply_chat_template=lambda convs, **_: convs)
    prm = SimpleNamespace(
        score=lambda prompts, texts: [[[_score(case, each.removesuffix("."))] for each in group] for group in texts]
    )
    with contextlib.suppress(ZeroDivisionError, IndexError):
        # their last iteration writes to the end: no line is complete before, and what follows is not compared
        space[name](["q"], config, SimpleNamespace(get_tokenizer=lambda: tokenizer), prm)
    return wrote[: case["rounds"]]


def beam_theirs(clone: Path) -> Callable[[Any], Any]:
    return lambda case: _sal(clone, "beam_search", "_beam_search", case, case["keep"] * case["branch"])


def beam_ours(case: dict[str, Any]) -> list[list[str]]:
    return play(Beam(keep=case["keep"], branch=case["branch"]), case, case["rounds"], case["rounds"])


def dvts_theirs(clone: Path) -> Callable[[Any], Any]:
    return lambda case: _sal(clone, "diverse_verifier_tree_search", "_dvts", case, case["keep"] * case["branch"])


def dvts_ours(case: dict[str, Any]) -> list[list[str]]:
    return play(Dvts(subtrees=case["keep"], branch=case["branch"]), case, case["rounds"], case["rounds"])


# --- its_hub ---------------------------------------------------------------------------------------------------------


def _marks(random: Random) -> Iterator[list[float]]:
    while True:
        yield [random.choice([0.0, 1.0, random.random(), random.random() ** 8]) for _ in range(random.randint(1, 12))]


def odds_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    rule = take(clone / "its_hub/algorithms/particle_gibbs.py", "_inv_sigmoid", "_softmax", np=np)
    return lambda scores: rule["_softmax"](np.array([rule["_inv_sigmoid"](each) for each in scores]))


class _Lines:
    """A made-up model: what a line goes on with, where it ends, and its marks."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._case = case
        self.drawn: list[list[str]] = []
        """Lines that were drawn at each depth, and the line that is kept for the next pass."""

    def mark(self, path: str) -> float:
        return Random(f"{self._case['seed']} mark {path}").random()

    def ends(self, path: str) -> bool:
        chance = Random(f"{self._case['seed']} end {path}").random()
        return path.count(".") + 1 >= self._case["depth"] or chance < 0.2

    def draw(self, lines: list[tuple[str, float]], count: int) -> list[str]:
        """Draw lines, by their chances alone: both sides draw the same."""
        order = sorted((path, round(chance, 9)) for path, chance in lines)
        random = Random(f"{self._case['seed']} draw {len(self.drawn)}")
        drawn = random.choices([path for path, _ in order], weights=[chance for _, chance in order], k=count)
        self.drawn.append(sorted(drawn))
        return drawn


def _passes(random: Random) -> Iterator[dict[str, Any]]:
    while True:
        yield {
            "seed": random.randrange(10**6), "particles": random.choice([2, 4, 8]), "passes": random.choice([1, 2, 3]),
            "depth": random.randint(1, 4),
        }  # fmt: skip


def gibbs_theirs(clone: Path) -> Callable[[Any], Any]:
    import numpy as np

    def run(case: dict[str, Any]) -> list[list[str]]:
        lines, counts = _Lines(case), Counter[str]()

        def forward(lm: Any, prompts: Any, steps: list[list[str]]) -> list[tuple[str, bool]]:
            said: list[tuple[str, bool]] = []
            for line in steps:
                counts[".".join(line)] += 1
                step = str(counts[".".join(line)])
                said.append((step, lines.ends(".".join([*line, step]))))
            return said

        def choices(population: Any, weights: Any, k: int) -> list[Any]:
            last = isinstance(population, range)
            at[0] = 0 if last else at[0] + 1
            paths = [".".join(each.steps[: None if last else at[0]]) for each in (particles[0] if last else population)]
            drawn = lines.draw(list(zip(paths, map(float, weights), strict=True)), k)
            return [population[paths.index(path)] for path in drawn]

        particles: list[list[Any]] = [[]]
        at = [0]

        def enumerated(found: Any) -> Any:
            particles[0] = list(found)
            return found

        rule = take(
            clone / "its_hub/algorithms/particle_gibbs.py", "_inv_sigmoid", "_softmax", "Particle",
            "ParticleGibbs._propagate", "ParticleGibbs.infer", "SelectionMethod", np=np, copy=copy, Enum=_Enum,
            dataclass=dataclass, random=SimpleNamespace(choices=choices), len=lambda found: len(enumerated(found)),
            ParticleGibbsResult=SimpleNamespace,
        )  # fmt: skip
        own = SimpleNamespace(
            sg=SimpleNamespace(forward=forward, _post_process=lambda steps, stopped: ".".join(steps)),
            prm=SimpleNamespace(score=lambda prompt, paths: [lines.mark(path) for path in paths]),
            num_iterations=case["passes"], selection_method=None, num_ref_particles=int(case["passes"] > 1),
            does_ancestor_sampling=False,
        )  # fmt: skip
        own._propagate = lambda *given, **named: rule["_propagate"](own, *given, **named)
        with contextlib.suppress(UnboundLocalError):  # which line is returned in the end is not asked
            rule["infer"](own, None, "", case["particles"] * case["passes"])
        return lines.drawn[:-1]  # the last line is kept for no pass

    return run


def gibbs_ours(case: dict[str, Any]) -> list[list[str]]:
    tree, lines = SearchTree(Random(0), 64), _Lines(case)
    frontier: Any = Particle(n=case["particles"], iterations=case["passes"]).frontier(tree)

    def drawn(nodes: list[SearchNode], count: int) -> list[SearchNode]:
        paths = [_path(node.name) for node in nodes]
        weights = draw_probabilities([tree.prior(node) for node in nodes])
        known = dict(zip(paths, nodes, strict=True))
        return [known[path] for path in lines.draw(list(zip(paths, weights, strict=True)), count)]

    frontier._resample = drawn
    came: list[SearchNode] = []
    while (parent := frontier.take()) is not None or came:
        if parent is None:
            for child in came:
                del tree.pending[child]
                frontier.ended(child)
            came = []
            continue
        index = len(parent.children) + 1
        child = SearchNode(f"{parent.name}.{index}", parent, parent.depth + 1, index)
        child.key = child.step = child.name
        parent.children.append(child)
        tree.nodes.append(child)
        tree.pending[child] = None
        tree.scored(child, lines.mark(_path(child.name)))
        child.outcome = "answer" if lines.ends(_path(child.name)) else "open"
        came.append(child)
    return lines.drawn


# --- ToolBench -------------------------------------------------------------------------------------------------------


def _mazes(random: Random) -> Iterator[dict[str, Any]]:
    """Odds with which a call gives up or answers, the greatest depth, the children of a node."""
    while True:
        yield {
            "seed": random.randrange(10**6), "branch": random.choice([2, 3]), "depth": random.randint(2, 5),
            "gives_up": random.choice([0.0, 0.2, 0.4]), "answers": random.choice([0.0, 0.03, 0.1]),
        }  # fmt: skip


def _fate(case: dict[str, Any], path: tuple[int, ...]) -> str:
    """Return what becomes of a call at a path."""
    chance = Random(f"{case['seed']} {path}").random()
    if chance < case["gives_up"]:
        return "dead"
    return "answer" if chance < case["gives_up"] + case["answers"] else "open"


MOST = 150
"""Calls of the model; the last one's tool call is not made in theirs."""


def dfs_theirs(clone: Path) -> Callable[[Any], Any]:
    folder = clone / "toolbench/inference"

    def run(case: dict[str, Any]) -> list[str]:
        order: list[str] = []
        counts: Counter[tuple[int, ...]] = Counter()

        class World:
            functions, task_description, input_description, retriever = (), "", "", None

            def __init__(self, path: tuple[int, ...] = (), fate: str = "open") -> None:
                self.path, self.fate = path, fate

            def __deepcopy__(self, memo: Any) -> World:
                return World(self.path, self.fate)

            def check_success(self) -> int:
                return int(self.fate == "answer")

            def step(self, action_name: str, action_input: str) -> tuple[str, int]:
                counts[self.path] += 1
                self.path = (*self.path, counts[self.path])
                self.fate = _fate(case, self.path)
                order.append(".".join(map(str, self.path)))
                return "{}", {"open": 0, "dead": 4, "answer": 3}[self.fate]

        tree = take(folder / "Tree/Tree.py", "my_tree", "tree_node", deepcopy=copy.deepcopy, json=json, print=_quiet)
        tree["tree_node"].print = _quiet
        message = {"role": "assistant", "content": None, "function_call": {"name": "go", "arguments": "{}"}}
        llm = SimpleNamespace(
            change_messages=lambda messages: None, parse=lambda *_, **__: (copy.deepcopy(message), 0, 1)
        )
        texts = dict.fromkeys(
            ("FORMAT_INSTRUCTIONS_SYSTEM_FUNCTION", "FORMAT_INSTRUCTIONS_USER_FUNCTION", "DIVERSITY_PROMPT"), ""
        )
        space = take(
            folder / "Algorithms/DFS.py", "DFS_tree_search", base_search_method=_Base, my_tree=tree["my_tree"],
            tree_node=tree["tree_node"], deepcopy=copy.deepcopy, json=json, print=_quiet, **texts,
        )  # fmt: skip
        search = space["DFS_tree_search"](llm, World(), callbacks=[])
        search.send_agent_chain_end = _quiet
        with contextlib.redirect_stdout(io.StringIO()):
            # a step of theirs is two nodes, a call and its arguments
            search.start(2 * case["depth"], case["branch"], MOST, answer=1, with_filter=False)
        return order

    return run


def _quiet(*_: Any, **__: Any) -> None: ...


class _Base:
    def __init__(self, *_: Any, **__: Any) -> None: ...


def dfs_ours(case: dict[str, Any]) -> list[str]:
    tree = SearchTree(Random(0), 1)
    frontier = Dfs(parallel=1, branch=case["branch"]).frontier(tree)
    order: list[str] = []
    while len(order) < MOST - 1 and (parent := frontier.take()) is not None:
        index = len(parent.children) + 1
        child = SearchNode(f"{parent.name}.{index}", parent, parent.depth + 1, index)
        child.key = child.step = child.name
        parent.children.append(child)
        tree.nodes.append(child)
        order.append(_path(child.name))
        fate = _fate(case, tuple(map(int, _path(child.name).split("."))))
        child.gave_up = fate == "dead"
        if fate == "answer":
            break
        if fate == "dead" or child.depth >= case["depth"]:
            child.outcome = "dead"
        frontier.ended(child)
    return order


ORACLES = [
    Oracle(
        "rebase-shares", *ETS, "rebase.py Tree.select_softmax", _depths, rebase_theirs, rebase_ours, number=150,
        through="search",
        differs="their running difference may round a child up beyond the width; ours sums what is left anew",
    ),
    Oracle(
        "ets-paper", *ETS, "rebase.py Tree.select_softmax_costmodel", _depths, ets_theirs, ets_ours, number=100,
        through="search",
        differs="shares as in rebase-shares; of equal optima either may be kept",
    ),
    Oracle(
        "sal-beam", *SAL, "src/sal/search/beam_search.py _beam_search", _widths, beam_theirs, beam_ours, number=40,
        through="search",
    ),
    Oracle(
        "sal-dvts", *SAL, "src/sal/search/diverse_verifier_tree_search.py _dvts", _widths, dvts_theirs, dvts_ours,
        number=40, through="search",
    ),
    Oracle(
        "its-hub-odds", *ITS_HUB, "its_hub/algorithms/particle_gibbs.py _inv_sigmoid, _softmax", _marks, odds_theirs,
        draw_probabilities,
    ),
    Oracle(
        "its-hub-gibbs", *ITS_HUB, "its_hub/algorithms/particle_gibbs.py ParticleGibbs.infer", _passes, gibbs_theirs,
        gibbs_ours, number=80, through="search",
        differs="theirs weighs the line that is kept by its last mark from the first step on",
    ),
    Oracle(
        "toolbench-dfs", *TOOLBENCH, "toolbench/inference/Algorithms/DFS.py DFS_tree_search.DFS", _mazes, dfs_theirs,
        dfs_ours, number=60, through="search",
        differs="where a child of the root gives up, theirs ends without an answer; ours goes on",
    ),
]  # fmt: skip

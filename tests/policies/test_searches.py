"""Searches: shares, pruning and order, without a machine."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, seed, strategies as st

from plait.core.ops import Plugin
from plait.core.search import Frontier, Search, SearchNode, SearchTree
from plait.policies.search.beams import Beam, BestFirst, Tot
from plait.policies.search.mcts import Dfs, Mcts
from plait.runtime.plugins.loader import Plugins
from plait_research.policies.search.leaf_sampling import (
    Ets,
    Particle,
    Rebase,
    select_by_program,
    select_by_tree,
    share_children,
)
from plait_research.policies.search.trees import Dvts, Stride

ALL = [
    BestFirst(),
    Stride(branch=4),
    Stride(per_depth=12),
    Beam(),
    Dvts(),
    Rebase(),
    Ets(limit=40),
    Mcts(),
    Dfs(),
]
ALL += [Tot(), Particle(), Particle(iterations=3)]


class Play:
    """Drives a search by hand."""

    def __init__(self, search: Search, width: int = 16, seed: int = 0) -> None:
        self.tree = SearchTree(Random(seed), width)
        self.frontier: Frontier = search.frontier(self.tree)

    def take(self) -> SearchNode | None:
        parent = self.frontier.take()
        if parent is None:
            return None
        index = len(parent.children) + 1
        child = SearchNode(f"{parent.name}.{index}", parent, parent.depth + 1, index, tokens=5)
        child.key = child.step = child.name
        parent.children.append(child)
        self.tree.nodes.append(child)
        self.tree.pending[child] = None
        return child

    def end(self, node: SearchNode, score: float | None, outcome: str = "open") -> None:
        self.tree.scored(node, score)
        if node.outcome == "open":
            node.outcome = outcome  # type: ignore[assignment]
        self.tree.pending.pop(node)
        self.frontier.ended(node)


def children_of_four(search: Search, children: int) -> list[int]:
    """Return how many of so many children each of four nodes gets that score .9, .8, .5 and .2."""
    play = Play(search, width=10_000)
    four = [child for child in (play.take() for _ in range(4)) if child is not None]
    play.tree.root.outcome = "expanded"
    for node, score in zip(four, (0.9, 0.8, 0.5, 0.2), strict=True):
        play.end(node, score)
    taken = Counter(child.parent for child in (play.take() for _ in range(children)) if child is not None)
    return [taken[node] for node in four]


def test_stride_gives_the_shares_of_rebase_without_rounding_up() -> None:
    assert children_of_four(Stride(), 64) == [36, 22, 5, 1]
    assert share_children([0.9, 0.8, 0.5, 0.2], 64, 0.2) == [37, 22, 5, 0]


def test_a_node_that_is_scored_late_catches_up() -> None:
    play = Play(Stride(), width=10_000)
    early, late = play.take(), play.take()
    assert early is not None and late is not None
    play.tree.root.outcome = "expanded"
    play.end(early, 0.5)
    assert all(child is not None and child.parent is early for child in (play.take() for _ in range(20)))
    play.end(late, 0.5)
    taken = Counter(child.parent for child in (play.take() for _ in range(30)) if child is not None)
    assert taken == {late: 25, early: 5}


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 40), st.floats(0.01, 2), st.randoms()
)  # fmt: skip
@seed(17)
def test_shares_of_a_budget_do_not_depend_on_who_is_scored_first(
    scores: list[float], budget: int, temperature: float, random: Random
) -> None:
    budget = max(budget, len(scores))
    found: list[dict[str, int]] = []
    for order in (range(len(scores)), random.sample(range(len(scores)), len(scores))):
        play = Play(Stride(per_depth=budget, reward_temperature=temperature), width=10_000)
        nodes = [child for child in (play.take() for _ in scores) if child is not None]
        play.tree.root.outcome = "expanded"
        for i in order:
            play.end(nodes[i], scores[i])
            while play.take() is not None:
                pass
        weights = [math.exp((score - max(scores)) / temperature) for score in scores]
        for node, weight in zip(nodes, weights, strict=True):
            assert len(node.children) >= math.floor(budget * weight / sum(weights) - 1e-6)
        assert sum(len(node.children) for node in nodes) == budget
        assert {node.outcome for node in nodes} <= {"expanded", "pruned"}, "the depth has all that it gets"
        found.append({node.name: len(node.children) for node in nodes})
    assert found[0] == found[1]


def test_all_depths_get_about_as_many_children() -> None:
    play = Play(Stride())
    random = Random(4)
    taken: Counter[int] = Counter()
    for _ in range(600):
        child = play.take() if len(play.tree.pending) < 16 else None
        if child is None:
            node = random.choice(list(play.tree.pending))
            play.end(node, random.random(), "open" if node.depth < 6 else "answer")
        else:
            taken[child.depth] += 1
    assert sorted(taken) == [1, 2, 3, 4, 5, 6]
    assert max(taken.values()) <= 2 * min(taken.values()), taken


def test_a_merged_state_takes_no_width_from_the_next_depth() -> None:
    play = Play(Rebase(per_depth=8))
    first = [child for child in (play.take() for _ in range(8)) if child is not None]
    for i, node in enumerate(first):
        play.end(node, 0.5, "open" if i < 4 else "merged")
    assert sum(play.take() is not None for _ in range(20)) == 8


@pytest.mark.parametrize("scores", [[1e308, -1e308, 0.0], [0.0] * 5, [700.0, 0.0]])
def test_shares_of_any_scores_add_up(scores: list[float]) -> None:
    assert sum(share_children(sorted(scores, reverse=True), 16, 0.2)) <= 16


def test_rebase_waits_for_the_whole_depth_and_best_first_does_not() -> None:
    for search, waits in ((Rebase(per_depth=4), True), (BestFirst(branch=4), False)):
        play = Play(search)
        first = [play.take() for _ in range(4)]
        assert first[0] is not None
        play.end(first[0], 0.9)
        assert (play.take() is None) is waits


def test_beam_keeps_the_best_of_a_depth() -> None:
    play = Play(Beam(keep=2, branch=3))
    first = [child for child in (play.take() for _ in range(6)) if child is not None]
    assert len(first) == 6 and play.take() is None
    for i, node in enumerate(first):
        play.end(node, i / 10)
    second = [child for child in (play.take() for _ in range(20)) if child is not None]
    assert Counter(child.parent for child in second) == {first[5]: 3, first[4]: 3}


def test_subtrees_keep_their_own_best_child() -> None:
    play = Play(Dvts(subtrees=2, branch=2))
    first = [child for child in (play.take() for _ in range(4)) if child is not None]
    for node, score in zip(first, (0.9, 0.8, 0.1, 0.2), strict=True):
        play.end(node, score)
    second = [child for child in (play.take() for _ in range(9)) if child is not None]
    assert Counter(child.parent for child in second) == {first[0]: 2, first[3]: 2}


def test_depth_first_goes_down_and_back_two_levels_from_a_dead_end() -> None:
    play = Play(Dfs(parallel=1, back=2))
    a = play.take()
    assert a is not None and play.take() is None, "one in flight"
    play.end(a, 0.5)
    b = play.take()
    assert b is not None and b.parent is a
    play.end(b, 0.5)
    c = play.take()
    assert c is not None and c.parent is b
    c.gave_up = True
    play.end(c, None, "dead")
    d = play.take()
    assert d is not None and d.parent is a, "b, the dead end's parent, gets no more children"
    assert "tried here before" in play.frontier.say(a)


def test_depth_first_goes_back_one_level_where_nobody_gave_up() -> None:
    play = Play(Dfs(parallel=1, back=2))
    a = play.take()
    assert a is not None
    play.end(a, None, "dead")
    b = play.take()
    assert b is not None and b.parent is play.tree.root


def test_depth_first_writes_a_sibling_once_it_can_be_shown_the_one_before() -> None:
    play = Play(Dfs(parallel=3, branch=3))
    first = play.take()
    assert first is not None
    first.step = ""
    assert play.take() is None, "a second child now might be the same as the first"
    first.step = "look behind A\n"
    second = play.take()
    assert second is not None and second.parent is play.tree.root and first in play.tree.pending
    second.step = ""
    assert "- look behind A" in play.frontier.say(play.tree.root)
    assert play.take() is None
    play.end(first, 0.5)
    below = play.take()
    assert below is not None and below.parent is first, "another node may be written meanwhile"
    blind = Play(Dfs(parallel=3, branch=3, diverse=False))
    for _ in range(3):
        child = blind.take()
        assert child is not None, "who is shown nothing need not wait"
        child.step = ""


def test_visits_in_flight_send_the_next_one_elsewhere() -> None:
    play = Play(Mcts(rollout=0))
    first = [play.take(), play.take()]
    assert all(node is not None and node.parent is play.tree.root for node in first)
    for node in first:
        assert node is not None
        play.end(node, 0.5)
    parents = {node.parent for node in (play.take() for _ in range(4)) if node is not None}
    assert len(parents) >= 2


def test_particles_are_drawn_by_score_and_ended_ones_stay() -> None:
    play = Play(Particle(n=8))
    first = [child for child in (play.take() for _ in range(8)) if child is not None]
    assert len(first) == 8
    for i, node in enumerate(first):
        play.end(node, 0.999 if i == 3 else 0.001)
    second = [child for child in (play.take() for _ in range(8)) if child is not None]
    assert {child.parent for child in second} == {first[3]}


def finished(play: Play, deep: int, random: Random) -> list[SearchNode]:
    """Drive a search to its end, over nodes that are answers at a depth, and return these."""
    while (nodes := [node for node in iter(play.take, None) if node is not None]) or play.tree.pending:
        for node in nodes:
            play.end(node, random.random(), "answer" if node.depth == deep else "open")
    return [node for node in play.tree.nodes if node.outcome == "answer"]


def test_the_reference_line_of_particle_gibbs_is_never_lost() -> None:
    class Kept(Particle):
        def frontier(self, tree: SearchTree) -> Frontier:
            made = super().frontier(tree)
            drawn, begun = made._resample, made._next_iteration  # type: ignore[attr-defined]
            last: list[SearchNode] = []

            def again() -> list[SearchNode]:
                assert all(node in (*made._ended, *made._reference[-1:]) for node in last)  # type: ignore[attr-defined]
                following = begun()
                last[:] = made._reference[-1:]  # type: ignore[attr-defined]
                return following

            def watched(nodes: list[SearchNode], count: int) -> list[SearchNode]:
                sizes.append((count, bool(made._reference)))  # type: ignore[attr-defined]
                return drawn(nodes, count)

            made._next_iteration, made._resample = again, watched  # type: ignore[attr-defined]
            return made

    sizes: list[tuple[int, bool]] = []
    for number in range(200):
        answers = finished(Play(Kept(n=8, iterations=3), seed=number), 3, Random(number))
        assert len(answers) >= 3
    assert {count for count, reference in sizes if reference} <= {7, 1} and (8, False) in sizes


def test_ets_as_published_shares_the_whole_width_among_the_leaves_that_it_keeps() -> None:
    play = Play(Ets(variant="paper", per_depth=8, diversity=0))
    first = [node for node in (play.take() for _ in range(8)) if node is not None]
    for i, node in enumerate(first):
        play.end(node, 0.9 if i < 2 else 0.1)
    second = [node for node in iter(play.take, None) if node is not None]
    assert Counter(node.parent for node in second) == {first[0]: 4, first[1]: 4}
    assert all(node.outcome == "pruned" for node in first[2:])


def random_tree(random: Random) -> tuple[list[float], list[list[int]], dict[int, float]]:
    parents: dict[int, int] = {}
    for node in range(1, random.randint(2, 14)):
        parents[node] = random.randrange(node)
    nodes = [0, *parents]
    inner = set(parents.values())
    leaves = [node for node in nodes if node not in inner or (node and random.random() < 0.2)]

    def path(node: int) -> list[int]:
        return [*path(parents[node]), node] if node in parents else [node]

    weights = [random.random() for _ in leaves]
    total = sum(weights)
    return [each / total for each in weights], [path(leaf) for leaf in leaves], {n: random.random() / 4 for n in nodes}


def worth(
    chosen: tuple[int, ...], weights: list[float], paths: list[list[int]], cost: dict[int, float],
    clusters: list[int] | None = None, diversity: float = 0.0,
) -> float:  # fmt: skip
    touched = {node for i in chosen for node in paths[i]}
    kinds = len({clusters[i] for i in chosen}) / len(set(clusters)) if clusters else 0.0
    return sum(weights[i] for i in chosen) - sum(cost[node] for node in touched) + diversity * kinds


def subsets(count: int) -> list[tuple[int, ...]]:
    return [each for size in range(1, count + 1) for each in itertools.combinations(range(count), size)]


def test_the_leaves_kept_are_the_best_by_brute_force() -> None:
    random = Random(5)
    for _ in range(400):
        weights, paths, cost = random_tree(random)
        kept = tuple(select_by_tree(weights, paths, cost))
        best = max(worth(each, weights, paths, cost) for each in subsets(len(weights)))
        assert kept and worth(kept, weights, paths, cost) == pytest.approx(best)


def test_the_integer_program_is_right_about_clusters() -> None:
    pytest.importorskip("scipy")
    random = Random(6)
    for _ in range(30):
        weights, paths, cost = random_tree(random)
        clusters = [random.randrange(3) for _ in weights]
        kept = select_by_program(weights, paths, cost, clusters, 0.4)
        assert kept is not None
        best = max(worth(each, weights, paths, cost, clusters, 0.4) for each in subsets(len(weights)))
        assert worth(tuple(kept), weights, paths, cost, clusters, 0.4) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("search", ALL, ids=lambda search: type(search).__name__)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_becomes_of_nodes_a_search_goes_on_or_ends(search: Search, seed: int) -> None:
    """No node that has ended is expanded, none is taken twice at once beyond what was asked, nothing hangs."""
    random = Random(seed)
    play = Play(search, seed=seed)
    for _ in range(300):
        child = play.take() if len(play.tree.pending) < 8 else None
        if child is not None:
            assert child.parent is not None and child.parent.outcome in ("open", "expanded")
            assert child.parent not in play.tree.pending
        elif play.tree.pending:
            node = random.choice(list(play.tree.pending))
            score = random.choice([None, 0.0, 1.0, random.random()])
            play.end(node, score, random.choice(["open", "open", "answer", "dead", "merged"]))
        else:
            break
    assert len(play.tree.nodes) > 1


class _Counted(list[SearchNode]):
    """Counts how often all of it is looked at."""

    passes = 0

    def __iter__(self) -> Iterator[SearchNode]:
        self.passes += 1
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.passes += isinstance(at, slice)
        return super().__getitem__(at)


GROWING = [BestFirst(), Stride(), Dvts(subtrees=300), Mcts(), Dfs(branch=3, parallel=8)]
GROWING += [Ets(branch=4, limit=10_000), Particle(n=400), Rebase(per_depth=400)]


@pytest.mark.parametrize("search", GROWING, ids=lambda search: type(search).__name__)
def test_five_thousand_nodes_are_not_looked_through_for_each(search: Search) -> None:
    random = Random(1)
    play = Play(search)
    nodes = play.tree.nodes = _Counted(play.tree.nodes)
    while len(nodes) < 5_000:
        child = play.take() if len(play.tree.pending) < 16 else None
        if child is not None:
            child.outcome = "dead" if child.depth > 14 else "open"
        elif play.tree.pending:
            score = None if random.random() < 0.3 else random.random()  # unknown ones count as the mean
            play.end(next(iter(play.tree.pending)), score)
        else:
            break
    assert len(nodes) >= 4_000, "the search ended before"
    passes = nodes.passes  # the list itself would be printed whole
    assert passes <= 60


def test_a_search_that_prunes_counts_what_is_resident_only_when_it_may_be_too_much() -> None:
    play = Play(Ets(branch=4, limit=2_000, balance=8))
    nodes = play.tree.nodes = _Counted(play.tree.nodes)
    random = Random(2)
    most = 0
    while len(nodes) < 5_000:
        child = play.take() if len(play.tree.pending) < 16 else None
        if child is None:
            play.end(next(iter(play.tree.pending)), random.random())
            passes = nodes.passes
            most = max(most, play.tree.resident())
            nodes.passes = passes
    assert most <= 2_500  # of 25,000
    passes = nodes.passes
    assert passes < 1_000


def test_searches_and_scorers_are_found_by_name_and_options_are_checked() -> None:
    plugins = Plugins()
    assert isinstance(plugins.create("search", Plugin(name="best-first", options={"branch": 2})), BestFirst)
    with pytest.raises(Exception, match="there is no option 'brunch'; did you mean 'branch'"):
        plugins.create("search", Plugin(name="best-first", options={"brunch": 2}))
    with pytest.raises(Exception, match="there is no scorer 'functoin'"):
        plugins.create("scorer", Plugin(name="functoin"))
    assert {"best-first", "beam", "dvts", "rebase", "stride", "ets", "mcts", "lats", "dfs", "tot", "particle"} <= set(
        plugins.names("search")
    )


def test_a_function_is_a_scorer() -> None:
    from plait.runtime.plugins.inline import made_of

    def length(question: str, text: str) -> float:
        return len(text) / len(question)

    made = made_of("scorer", length)
    assert made is not None and made.__name__ == "length"

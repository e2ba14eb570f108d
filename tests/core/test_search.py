"""What a search tree keeps of its nodes: scores, what is given up, and what an engine still needs."""

from __future__ import annotations

from random import Random

import pytest

from plait.core.search import SearchNode, SearchTree


def grown() -> tuple[SearchTree, dict[str, SearchNode]]:
    """A root with two children, of which the first has one of its own."""
    tree = SearchTree(Random(0), width=4)
    nodes = {"n": tree.root}
    for name in ("n.1", "n.2", "n.1.1"):
        parent = nodes[name[:-2]]
        node = nodes[name] = SearchNode(name, parent, step=name, tokens=len(name))
        parent.children.append(node)
        tree.nodes.append(node)
    return tree, nodes


def test_an_unknown_score_is_the_mean_of_the_known_ones() -> None:
    tree, nodes = grown()
    assert tree.prior(nodes["n.1"]) == 0.5, "none is known"
    for name, score in (("n.1", 0.25), ("n.2", 0.75), ("n.1.1", None)):
        tree.scored(nodes[name], score)
    assert tree.prior(nodes["n.1.1"]) == 0.5 and tree.prior(nodes["n.2"]) == 0.75
    tree.scored(SearchNode("n.3", tree.root), 0.8)
    assert tree.prior(nodes["n.1.1"]) == pytest.approx(0.6)


def test_an_engine_needs_what_is_open_and_what_leads_there() -> None:
    tree, nodes = grown()
    nodes["n"].outcome = nodes["n.1"].outcome = "expanded"
    assert set(tree.live()) == set(nodes.values())
    tree.prune(nodes["n.1"])
    assert tree.live() == [nodes["n.2"], nodes["n"]]
    assert tree.resident() == nodes["n"].tokens + nodes["n.2"].tokens


def test_a_step_with_an_effect_gives_up_all_beside_its_path() -> None:
    tree, nodes = grown()
    tree.commit(nodes["n.1"])
    assert [node.outcome for node in nodes.values()] == ["expanded", "open", "pruned", "open"]

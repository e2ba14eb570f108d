"""Searches choose the node of a tree of partial solutions that gets the next child.

A plugin has its file's name, or is in `SHARED`.
"""

SHARED = {
    "beam": "beams:Beam",
    "best-first": "beams:BestFirst",
    "dfs": "mcts:Dfs",
    "mcts": "mcts:Mcts",
    "tot": "beams:Tot",
}
"""`module:Class` of the plugins that share a file, by name."""

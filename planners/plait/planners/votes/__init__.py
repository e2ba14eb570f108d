"""Planners that write several answers and let them vote, or refine one another.

A planner has its file's name, or is listed in `SHARED`.
"""

SHARED = {
    "adaptive": "sample:Adaptive",
    "sample": "sample:Sample",
    "single": "sample:Single",
}
"""`module:Class` of the planners that share a file, by name."""

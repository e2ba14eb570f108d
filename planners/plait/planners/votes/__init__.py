"""Planners that write several answers and let them vote, or refine one another."""

"""Routing learned from recorded runs: which planner a request is worth."""

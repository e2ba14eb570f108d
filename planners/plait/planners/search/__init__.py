"""Planners that search over partial solutions."""

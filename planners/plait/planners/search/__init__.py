"""Planners that search over partial solutions or programs."""

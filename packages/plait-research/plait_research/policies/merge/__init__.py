"""Merges of the planners under research."""

"""Planners whose agents read one another."""

"""Scorers: how promising a partial solution is."""

"""Scorers: how promising a partial solution is. One file each."""

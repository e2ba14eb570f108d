"""Journals of runs: write, read, resume and replay runs."""

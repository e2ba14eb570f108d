"""Inspect and control active runs from outside: the table of verbs, and the socket that accepts them."""

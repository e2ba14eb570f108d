"""Runs under way, seen and steered from outside: what can be done to them, and the socket that takes it."""

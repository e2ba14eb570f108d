"""Policies that stop steps whose result is unlikely to matter."""

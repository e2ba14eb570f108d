"""Plugins by name: finding a class, reading its spelling, wrapping objects of the caller's."""

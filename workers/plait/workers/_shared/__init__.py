"""Helpers that several workers use."""

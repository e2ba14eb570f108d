"""Helpers that several planners use."""

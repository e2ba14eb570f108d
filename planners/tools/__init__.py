"""Planners that call tools."""

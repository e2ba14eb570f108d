"""Planners that split a request into parts."""

"""Planners that are ideas or lost wherever they were measured."""

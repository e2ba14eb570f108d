"""Traces of runs from journals, and the formats of `plait runs view`."""

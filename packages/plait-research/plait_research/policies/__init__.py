"""Policies and merges that are ideas, lost wherever they were measured, or serve such planners alone."""

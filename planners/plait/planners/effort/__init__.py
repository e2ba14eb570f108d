"""Planners that choose how much work, or which model, a request is worth."""

"""Rollouts: runs of a planner as records for training."""

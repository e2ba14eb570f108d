"""Environments: where questions whose answers are run are worked on and graded. One file each."""

"""Runs as files: writing them down, reading them back, resuming and replaying them."""

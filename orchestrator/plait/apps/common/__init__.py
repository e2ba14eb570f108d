"""What several commands share: options, output, sessions, the tree of a run."""

"""Policies: `schedule` orders and places steps, `prune` gives branches up, `merge` makes one answer of many."""

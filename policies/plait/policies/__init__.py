"""Policies: `schedule` orders and places steps, `stop` ends votes, `prune` gives branches up, `merge` makes one answer
of many branches, `allocate` says how many branches there shall be.
"""

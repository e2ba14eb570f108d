"""Policies: `schedule` orders and places steps, `stop` ends votes, `prune` cancels branches, `merge` makes one answer
from many branches, `allocate` chooses the number of branches.
"""

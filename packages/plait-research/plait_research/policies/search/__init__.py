"""Searches: which node of a tree of partial solutions gets the next child."""

"""Allocations: merges of a few probes that say how many more branches there shall be, and which. One file each."""

"""The servers of plait."""

"""Merges, which make one answer of a join's branches. One file each; the file's name is the plugin's name."""

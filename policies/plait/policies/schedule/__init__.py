"""Policies that order ready steps and choose workers for them. One file each; the file's name is the plugin's name."""

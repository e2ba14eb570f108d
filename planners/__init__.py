"""Planners: how a request becomes a plan. One file each; the file's name is the plugin's name."""

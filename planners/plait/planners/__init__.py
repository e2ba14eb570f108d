"""Planners: how a request becomes a plan. One file or package each; its name is the plugin's name."""

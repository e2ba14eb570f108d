"""Policies that give branches up. A plugin has its file's name, or is listed in `SHARED`."""

SHARED = {
    "consensus": "branches:Consensus",
    "redundant": "branches:Redundant",
}
"""`module:Class` of the plugins that share a file, by name."""

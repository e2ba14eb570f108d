"""Policies that give branches up. One file each; the file's name is the plugin's name."""

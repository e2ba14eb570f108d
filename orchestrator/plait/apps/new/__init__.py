"""`plait new`: one file with a plugin, replies to try it with, and its test."""

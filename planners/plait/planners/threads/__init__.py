"""Planners whose model spawns threads of reasoning."""

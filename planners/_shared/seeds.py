"""Seeds for the model calls of one run."""

from plait.core.planning import derive

__all__ = ["derive"]

"""Placement of requests on engines by cached prompts, sessions and load, without the rest of plait."""

from .router import Router

__all__ = ["Router"]

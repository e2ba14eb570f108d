"""A run under way, and whose it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ...runtime.client.handle import Handle
from .asked import Asked
from .tenants import User

__all__ = ["Live"]


@dataclass(slots=True)
class Live:
    """A run that a client has started, and that has not ended."""

    handle: Handle
    user: User
    asked: Asked
    began: float = field(default_factory=time.time)

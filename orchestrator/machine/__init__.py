"""The machine: events in, actions out. Outside this folder only the names listed here are used; the records (`Run`,
`Node`, `Attempt`, `WorkerState`) are then read and never written to."""

from .follow import Order, Refused, Sent
from .invariants import check
from .machine import Machine
from .records import Attempt, Node, Run, WorkerState
from .views import StepView, View

__all__ = [
    "Attempt",
    "Machine",
    "Node",
    "Order",
    "Refused",
    "Run",
    "Sent",
    "StepView",
    "View",
    "WorkerState",
    "check",
]

"""The machine: events in, actions out. Outside this folder only the names listed here are used; the records (`Run`,
`Node`, `Attempt`, `WorkerState`) are then read and never written to."""

from .decision_replay import Order, RefuseOrder, SendOrder
from .machine import Machine
from .records import Attempt, Node, Run, WorkerState
from .views import MachineView, NodeView

__all__ = [
    "Attempt",
    "Machine",
    "MachineView",
    "Node",
    "NodeView",
    "Order",
    "RefuseOrder",
    "Run",
    "SendOrder",
    "WorkerState",
]

"""A run as a stream of AG-UI events (`pip install 'plait[agui]'`), for frontends that speak that protocol.

Each step is a reasoning message whose `message_id` is the step's id, so that a frontend can show branches side by
side. The answer is a text message with the id of the run. A question is an interrupt.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import AsyncIterator

from ag_ui.core import events as ag

from plait.runtime.client.handle import Handle

from ..agui import AguiWriter
from ..settings import Settings, Tenant
from ..stream_events import stream_choices
from ..tenants import ServedRun, User


async def agui_events(handle: Handle, thread_id: str) -> AsyncIterator[ag.BaseEvent]:
    """Yield the events of a run that was submitted with `watch=True`. After an interrupt the run waits: answer with
    `Handle.answer(interrupt.id, …)` and follow it again.
    """
    run = ServedRun(handle, User(Tenant(name="adapter"), Settings()), "", steps=True)
    writer = AguiWriter(run, thread_id, handle.run)
    for event in writer.begin():
        yield event
    async for place, choice_event in stream_choices([run], follow="from_start"):
        for event in writer.add(place, choice_event):
            yield event
        if writer.has_ended:
            return

"""Makes the bundled Countdown model: traces, checker, training, evaluation, export.

A developer's tool, not shipped in the wheel. It knows the task and the trace grammar (see FORMAT.md); it
does not know the orchestrator, and the orchestrator does not import it.
"""

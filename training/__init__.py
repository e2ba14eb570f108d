"""Makes the bundled models: traces, checkers, training, evaluation, export.

A developer's tool, not shipped in the wheel. The orchestrator does not import it. Countdown's part knows nothing of the
orchestrator; the trade `tables` takes its questions and facts from the task of that name, and its plans are checked by
the planner that reads them.
"""

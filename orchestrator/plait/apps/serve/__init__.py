"""`plait serve`: the orchestrator behind the OpenAI API."""

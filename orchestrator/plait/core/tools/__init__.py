"""Tools: declarations, schemas, and the context of a call."""

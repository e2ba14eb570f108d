"""Tools: how they are declared, their schemas, and the context of a call."""

"""Tools: declaring them, their schemas, and what one is given at a call."""

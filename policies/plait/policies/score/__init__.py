"""Scorers: how promising a partial solution is. A plugin has its file's name, or is in `SHARED`."""

SHARED = {
    "function": "simple:FunctionScorer",
    "logprob": "simple:Logprob",
    "tool": "simple:ToolScorer",
}
"""`module:Class` of the plugins that share a file, by name."""

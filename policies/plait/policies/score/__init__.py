"""Scorers: how promising a partial solution is. A plugin has its file's name, or is in `SHARED`."""

SHARED = {
    "function": "scorers:FunctionScorer",
    "judge": "scorers:Judge",
    "logprob": "scorers:Logprob",
    "model": "scorers:Model",
    "tool": "scorers:ToolScorer",
}
"""`module:Class` of the plugins that share a file, by name."""

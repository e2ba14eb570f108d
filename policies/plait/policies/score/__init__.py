"""Scorers rate how promising a partial solution is. A plugin has its file's name, or is listed in `SHARED`."""

SHARED = {
    "function": "scorers:FunctionScorer",
    "judge": "scorers:Judge",
    "logprob": "scorers:Logprob",
    "model": "scorers:Model",
    "tool": "scorers:ToolScorer",
}
"""`module:Class` of the plugins that share a file, by name."""

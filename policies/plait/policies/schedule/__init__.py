"""Policies that order ready steps and choose workers for them. A plugin has its file's name, or is in `SHARED`."""

SHARED = {
    "breadth-first": "simple:BreadthFirst",
    "critical-path": "simple:CriticalPath",
    "fifo": "simple:Fifo",
    "least-loaded": "simple:LeastLoaded",
    "random": "simple:Random",
    "round-robin": "simple:RoundRobin",
    "waves": "simple:Waves",
}
"""`module:Class` of the plugins that share a file, by name."""

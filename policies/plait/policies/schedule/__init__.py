"""Policies that order ready steps and choose workers for them. A plugin has its file's name, or is in `SHARED`."""

SHARED = {
    "affinity": "placement:Affinity",
    "breadth-first": "simple:BreadthFirst",
    "critical-path": "simple:CriticalPath",
    "deadline": "order:Deadline",
    "fifo": "simple:Fifo",
    "hedge": "placement:HedgeStragglers",
    "least-loaded": "simple:LeastLoaded",
    "predictive": "order:Predictive",
    "random": "simple:Random",
    "round-robin": "simple:RoundRobin",
    "waves": "simple:Waves",
}
"""`module:Class` of the plugins that share a file, by name."""

"""Merges make one answer from a join's branches. A plugin has its file's name, or is listed in `SHARED`."""

SHARED = {
    "best-of": "best:BestOf",
    "best-scored": "best:BestScored",
    "collect": "values:Collect",
    "constant": "values:Constant",
    "finish": "values:FinishMarker",
    "inverse-entropy": "votes:InverseEntropy",
    "judged": "best:Judged",
    "majority": "votes:Majority",
    "map-reduce": "synthesis:MapReduce",
    "observations": "values:Observations",
    "pairwise": "best:Pairwise",
    "posterior": "votes:Posterior",
    "scratchpad": "values:Scratchpad",
    "self-certainty": "votes:SelfCertainty",
    "splice": "values:Splice",
    "stitch": "synthesis:Stitch",
    "synthesis": "synthesis:Synthesis",
    "synthesis-drafts": "synthesis:SynthesisDrafts",
    "synthesis-or-vote": "synthesis:SynthesisOrVote",
    "equivalent": "votes:Equivalent",
    "weighted": "votes:Weighted",
}
"""`module:Class` of the plugins that share a file, by name."""

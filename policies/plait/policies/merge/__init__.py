"""Merges make one answer from a join's branches. A plugin has its file's name, or is listed in `SHARED`."""

SHARED = {
    "best-of": "best:BestOf",
    "best-scored": "best:BestScored",
    "collect": "values:Collect",
    "constant": "values:Constant",
    "observations": "values:Observations",
    "inverse-entropy": "votes:InverseEntropy",
    "majority": "votes:Majority",
    "posterior": "votes:Posterior",
    "self-certainty": "votes:SelfCertainty",
    "synthesis": "synthesis:Synthesis",
    "synthesis-drafts": "synthesis:SynthesisDrafts",
    "synthesis-or-vote": "synthesis:SynthesisOrVote",
}
"""`module:Class` of the plugins that share a file, by name."""

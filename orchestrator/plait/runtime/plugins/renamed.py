"""Options that have another name now: who writes the old one is told the new one."""

from __future__ import annotations

__all__ = ["RENAMED"]

RENAMED: dict[str, dict[str, str]] = {
    "merge alike": {"groups": "grouped"},
    "merge best-scored": {"scorer": "function"},
    "merge by-saturation": {"tokens": "most_tokens", "strategies": "wordings"},
    "merge distinct": {"pairs": "beginnings"},
    "merge equivalent": {"groups": "grouped", "most": "shown"},
    "merge judged": {"entries": "marks"},
    "merge observations": {"text": "written"},
    "merge posterior": {"temperature": "vote_temperature"},
    "merge runtime": {
        "each": "per_sequence",
        "latency": "within",
        "quantile": "confidence",
        "share": "done_share",
        "tokens": "most_tokens",
    },
    "merge scratchpad": {"entries": "actions", "limit": "observation_chars"},
    "merge splice": {"entries": "places"},
    "merge stitch": {"entries": "parts"},
    "merge tool-majority": {"value": "gives"},
    "policy adaptive-consistency": {"least": "min_votes"},
    "policy affinity": {"least": "cached_tokens", "share": "cached_share"},
    "policy cges": {"least": "min_votes", "temperature": "vote_temperature", "threshold": "confidence"},
    "policy confident": {"floor": "threshold"},
    "policy deepconf": {"wait": "hold"},
    "policy deepconf-consensus": {"warmup": "min_votes"},
    "policy futility": {"epsilon": "chance"},
    "policy gang": {"lead": "leader", "share": "expected"},
    "policy hedge": {"factor": "stretch", "least": "min_ended"},
    "policy redundant": {"judge": "by"},
    "policy saturation": {"least": "min_votes"},
    "policy semantic-entropy": {"least": "min_votes", "threshold": "entropy"},
    "policy successive-halving": {"least": "stay"},
    "policy waves": {"width": "n"},
    "scorer logprob": {"along": "over"},
    "scorer reward-model": {"name": "tool"},
    "scorer tool": {"name": "tool"},
    "search ets": {"budget": "per_depth", "style": "variant", "temperature": "reward_temperature"},
    "search lats": {"alpha": "growth"},
    "search mcts": {"alpha": "growth"},
    "search particle": {"temperature": "reward_temperature"},
    "search rebase": {"budget": "per_depth", "temperature": "reward_temperature"},
    "search stride": {"budget": "per_depth", "temperature": "reward_temperature"},
    "task plain": {"answer": "where"},
    "task sums": {"level": "skill"},
    "worker http": {"form": "endpoint"},
}
"""By kind and name of the plugin: old to new names of options."""

"""Planner `sample`: n independent samples of one prompt, and a merge that makes one answer of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from plait.core.interfaces import Brief, Planner
from plait.core.ops import Join, Plugin, Sampling, Text, Think
from plait.core.plan import Plan, Step

from .._shared.seeds import derive, line_code
from .._shared.steps import OnePlugin, begun

__all__ = ["Sample"]


class Sample(Planner):
    """Self-consistency (Wang et al., arXiv 2203.11171) with `merge="majority"`, best-of-n with `merge="best-of"`.

    Samples that fail are left out of the vote; the run fails only if all of them do.

    Differs from the paper: answers are compared as the task canonicalises them, a tie has a rule, and the vote can end
    as soon as what is outstanding cannot change it. Defaults: 8 samples, temperature 1, 512 tokens each.
    """

    n_option: ClassVar[str | None] = "n"

    n: int = Field(default=8, ge=1)
    """Samples, each a model call of its own, so that each can be stopped alone. `auto`: as many as end within the run's
    `seconds`, by what `plait simulate calibrate` has found."""
    temperature: float = Field(default=1.0, ge=0.0)
    """0 is greedy, and makes all samples the same."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens to generate in one sample."""
    style: Literal["serial", "direct"] = "serial"
    """Mode of answering that the prompt asks for."""
    width: int = Field(default=8, ge=1)
    """Branches that one sample may try, where the task's prompt says so."""
    merge: OnePlugin = Plugin(name="majority")
    """The merge, by name (`majority`, `best-of`) or as `{"name": …, "options": {…}}`."""
    early: bool = False
    """Close the join as soon as its verdict is certain, and stop the other samples. The policy `consensus` does the
    same for any planner."""
    logprobs: int = Field(default=0, ge=-1)
    """`Sampling.logprobs` of the samples: with 1 the majority breaks ties by the mean; merges and prunings by
    confidence need 2 or more."""
    window: int = Field(default=0, ge=0)
    """`Sampling.window` of the samples."""
    arithmetic: bool = False
    """Arithmetic sampling (Vilnis et al., arXiv 2210.15458): in place of random numbers each sample follows a code, and
    the codes of all are spread evenly, so that the samples repeat one another less and their votes scatter less. Each
    by itself is an ordinary sample. Stop rules that count votes assume independent ones. Needs the worker `engine` or
    `ray`, on a GPU with their option `arithmetic=true`, or a vLLM server with
    `--logits-processors plait.workers.engine.arithmetic:Arithmetic`."""
    begin: str = ""
    """Text that the model's turn begins with. `no-thinking`: an ended block of thoughts, for a model that thinks before
    it answers (NoThinking, arXiv 2504.09858); where the chat template opens the block itself, give the text that ends
    it: `Okay, I think I have finished thinking.\\n</think>\\n\\n`."""
    stream: bool = False
    """Send the samples' text while it is being written."""

    def start(self, brief: Brief) -> Plan:
        """Return `sample-1` … `sample-n` and their join `vote`."""
        prompt = (Text(text=brief.task.render(self.style, self.width)),)
        chat = brief.task.chat()
        names = tuple(f"sample-{i}" for i in range(1, self.n + 1))
        samples = [
            Step(
                name=name,
                op=begun(
                    Think(prompt=prompt, chat=chat, sampling=self._sampling(brief.request.seed, i), stream=self.stream),
                    self.begin,
                ),
                label=f"sample {i} of {self.n}",
            )
            for i, name in enumerate(names, 1)
        ]
        vote = Join(merge=self.merge, tolerate="best-effort", early=self.early)
        join = Step(name="vote", op=vote, needs=names, label=f"{self.merge.name} of {self.n}")
        return Plan(steps=(*samples, join), output="vote")

    def _sampling(self, seed: int, index: int) -> Sampling:
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=derive(seed, "sample", index) if self.temperature else None,
            logprobs=self.logprobs,
            window=self.window,
            arithmetic=line_code(seed, index, self.n) if self.arithmetic and self.temperature else None,
        )

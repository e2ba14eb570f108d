"""Read the log-probabilities of a response: scores, confidence, labels, and the tokens with their alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plait.core.result import Signals, Token
from plait.core.sampling import Sampling
from plait.core.values import writable

from .._shared.confidence import ConfidenceTrace, add_position, token_draws
from .request_body import ServerError

MIN_LOGPROB = -9999.0
"""Replaces minus infinity, in nats: JSON has no infinity, and vLLM itself writes this number for it."""


class LogprobTrace:
    """The log-probabilities of one response, as far as its sampling settings ask for them."""

    def __init__(self, sampling: Sampling) -> None:
        """Start an empty trace."""
        self._sampling = sampling
        self._is_required = bool(sampling.logprobs) or sampling.top_logprobs is not None
        self._sum, self._count = 0.0, 0
        self._scores: list[float] = []
        self._tokens: list[Token] = []
        # One candidate per position says how likely it is, not how certain the model was.
        self._confidence = ConfidenceTrace.of(sampling) if sampling.logprobs not in (0, 1) else None
        self.labels: dict[str, float] = {}
        """Log-probabilities of the labels that are among the first position's likeliest tokens."""

    def feed(self, logprobs: object, text: str, is_thought: bool) -> list[float]:
        """Read the `logprobs` of one choice and return its tokens' scores in nats. Raises `ServerError`."""
        # Confidence is about the answer: a model's doubts while it thinks are no doubts about what it then says.
        scores = [] if is_thought else _sampled_scores(logprobs)
        if self._is_required and text and not scores and not self._count:
            raise ServerError(
                "the server gives no log-probabilities, and this step asks for them: use a server that does (vLLM, "
                "SGLang), or a planner and policies that do without"
            )
        if self._sampling.labels and text and not self.labels and not is_thought:
            self.labels = _label_scores(self._sampling.labels, logprobs)
        if self._confidence is not None and scores:
            self._feed_confidence(self._confidence, logprobs)
        self._sum += sum(scores)
        self._count += len(scores)
        if self._sampling.token_logprobs:
            self._scores += scores
        if self._sampling.top_logprobs is not None:
            self._tokens += read_tokens(logprobs, self._sampling.top_logprobs)
        return scores

    def _feed_confidence(self, trace: ConfidenceTrace, logprobs: object) -> None:
        for position in top_scores(logprobs):
            # One candidate alone has no distribution whose spread could be measured.
            if len(position) < 2:
                raise ServerError(
                    "the server gives the log-probability of the sampled token alone, and this step asks for those of "
                    f"{self._sampling.logprobs}: ask for logprobs=1, or use a server that gives them (vLLM, SGLang)"
                )
            add_position(trace, position)

    @property
    def groups(self) -> tuple[float | None, float | None]:
        """The mean confidence of the last full window, and the lowest so far."""
        trace = self._confidence
        return (trace.group, trace.lowest) if trace is not None else (None, None)

    def is_due(self) -> bool:
        """Whether a policy that gets no text deltas must now be sent the confidence of the current window."""
        return self._confidence is not None and self._confidence.window > 0 and self._confidence.due()

    @property
    def best_label(self) -> str | None:
        """The likeliest label, if the step has labels."""
        return max(self.labels, key=lambda label: self.labels[label]) if self.labels else None

    def close(self, ids: Sequence[int], is_processed: bool) -> dict[str, Any]:
        """Return the fields of the result that come from log-probabilities; `ids` are empty if they are not exact."""
        drawn = None
        if ids and self._scores and len(self._scores) == len(ids):
            drawn = token_draws(self._sampling, self._scores, processed=is_processed)
        signals: Signals | None = self._confidence.signals() if self._confidence is not None else None
        mean = self._sum / self._count if self._sampling.logprobs and self._count else None
        return {"logprob": mean, "signals": signals, "labels": self.labels, "drawn": drawn}

    def tokens_of(self, text: str, secrets: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens that spell a text; none if they spell a secret."""
        length, kept = 0, list[Token]()
        for token in self._tokens:
            if length >= len(text):  # the tokens of a stop text, which was cut off
                break
            kept.append(token)
            length += len(token.text)
        # The text itself is redacted, but its tokens are not: several of them together may spell the key.
        spelled = "".join(token.text for token in self._tokens)
        return () if any(secret in spelled for secret in secrets) else tuple(kept)


def _sampled_scores(logprobs: object) -> list[float]:
    """Return the sampled tokens' log-probabilities, in nats, of a completions or a chat choice."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [float(entry["logprob"]) for entry in content]
    # The first position of an echoed prompt has no score, but null.
    return [float(score) for score in logprobs.get("token_logprobs") or () if score is not None]


def _label_scores(labels: Sequence[str], logprobs: object) -> dict[str, float]:
    """Return the log-probabilities of those labels that are among the likeliest tokens of the first position. Raises
    `ServerError` without any."""
    tops: object = None
    if isinstance(logprobs, Mapping):
        tops = logprobs.get("content") or logprobs.get("top_logprobs")
    first: Any = tops[0] if isinstance(tops, list) and tops else None
    if isinstance(first, Mapping) and isinstance(listed := first.get("top_logprobs"), list):
        first = {entry.get("token"): entry.get("logprob") for entry in listed if isinstance(entry, Mapping)}
    if not isinstance(first, Mapping) or not first:
        raise ServerError(
            "the server does not list the likeliest tokens, and this step asks how likely its labels are: use a server "
            "that gives `top_logprobs` (vLLM, SGLang, OpenAI), or another scorer"
        )
    scores = {label: float(first[label]) for label in labels if isinstance(first.get(label), int | float)}
    if not scores:
        raise ServerError(
            f"none of the labels ({', '.join(labels)}) is among the server's {len(first)} likeliest tokens: ask the "
            "model more plainly for one of them"
        )
    return scores


def top_scores(logprobs: object) -> list[list[float]]:
    """Return the log-probabilities of the likeliest tokens, a list per position of a completions or chat choice. The
    sampled token's may be one more among them."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [[float(top["logprob"]) for top in entry.get("top_logprobs") or ()] for entry in content]
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list):
        return [[] for score in logprobs.get("token_logprobs") or () if score is not None]
    return [[float(value) for value in (position or {}).values()] for position in tops]


def read_tokens(logprobs: object, max_alternatives: int) -> list[Token]:
    """Return the tokens of a completions or a chat choice, each with its likeliest alternatives."""

    def bounded(value: object) -> float:
        # Rounding can put a certain token's log-probability slightly above 0.
        return max(MIN_LOGPROB, min(0.0, float(value))) if isinstance(value, int | float) else MIN_LOGPROB

    def build_token(text: object, score: object, tops: Iterable[tuple[object, object]]) -> Token:
        top = sorted(((writable(str(word)), bounded(value)) for word, value in tops), key=lambda pair: -pair[1])
        return Token(text=writable(str(text)), logprob=bounded(score), top=tuple(top[:max_alternatives]))

    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        tops = [[(top["token"], top["logprob"]) for top in entry.get("top_logprobs") or ()] for entry in content]
        return [build_token(entry["token"], entry["logprob"], top) for entry, top in zip(content, tops, strict=True)]
    texts, scores = logprobs.get("tokens") or (), logprobs.get("token_logprobs") or ()
    listed = logprobs.get("top_logprobs") or [None] * len(texts)
    rows = zip(texts, scores, listed, strict=False)
    return [build_token(text, score, (top or {}).items()) for text, score, top in rows]

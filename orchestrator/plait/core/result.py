"""What a step ends in: a result with its token counts and confidence statistics, or a failure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .causes import Cause
from .errors import WorkerLost, code_of
from .plan import Plan
from .values import Frozen, as_text, writable


def _is_none(value: object) -> bool:
    return value is None


Finish = Literal["stop", "length", "error", "cancelled"]


Source = Literal["server", "ids", "estimate", "unknown"]
"""Who counted. `server`: who answered said it, a server or a worker. `ids`: plait counted token ids. `estimate`: plait
took it from the size of a text, the pieces of a stream or the time. `unknown`: nobody said a word."""
_SUREST: tuple[Source | None, ...] = (None, "server", "ids", "estimate", "unknown")


def least_sure(*sources: Source | None) -> Source | None:
    """Return the source that says the least: that of a sum. `None` has nothing to say.

    >>> least_sure("server", "estimate", None)
    'estimate'
    """
    return max(sources, key=_SUREST.index)


class Sources(Frozen):
    """Who counted each count of a `Usage`; of a sum, the least sure of all that went into it. `None`: there was nothing
    to count, as in a call of a tool. A count of `server` or `ids` is exact; by how much one of `estimate` or `unknown`
    may be wrong is in `Usage.uncounted` and `Usage.uncounted_prompt`."""

    prompt: Source | None = Field(default=None, exclude_if=_is_none)
    cached: Source | None = Field(default=None, exclude_if=_is_none)
    """`unknown` wherever it was not told: `Usage.cached` is then 0."""
    completion: Source | None = Field(default=None, exclude_if=_is_none)
    thoughts: Source | None = Field(default=None, exclude_if=_is_none)
    cost: Source | None = Field(default=None, exclude_if=_is_none)
    """The least sure of the counts that it was computed of."""

    @classmethod
    def all(cls, source: Source) -> Sources:
        """Return one source for all tokens."""
        named = {"prompt": source, "cached": source, "completion": source, "thoughts": source}
        return cls.model_construct(set(named), **named)

    def __add__(self, other: Sources) -> Sources:
        if self is other or other is NO_SOURCES:
            return self
        if self is NO_SOURCES:
            return other
        ours, theirs = self.__dict__, other.__dict__
        return self if ours == theirs else Sources(**{name: least_sure(ours[name], theirs[name]) for name in ours})


NO_SOURCES = Sources.model_construct()
UNKNOWN = Sources.all("unknown")


class Usage(Frozen):
    """Tokens (and cost) of one attempt, or summed over many."""

    prompt: int = 0
    """Prompt tokens, cached ones included."""
    cached: int = 0
    """Prompt tokens read from the prefix cache, as far as that was told: an answer that was left early says nothing."""
    completion: int = 0
    """Generated tokens."""
    thoughts: int = 0
    """Generated tokens of thoughts. Part of `completion`."""
    cancelled: int = 0
    """Generated tokens that nobody read: those of stopped, failed and superseded attempts. Part of `completion`."""
    cost: float = 0.0
    reused: int = 0
    """Tokens of results that came out of the result cache. Nothing was generated for them, so they are no part of
    `completion`, and their prompts none of `prompt`."""
    uncounted: int = 0
    """By how many tokens `completion` may be wrong at most: of answers that were given up, or whose server does not
    count. Budgets take them for generated."""
    uncounted_prompt: int = 0
    """By how many tokens `prompt` may be wrong at most: it is an estimate where the server said nothing of it. Budgets
    take them for read."""
    sources: Sources = Field(default=NO_SOURCES, exclude_if=lambda sources: sources == NO_SOURCES)
    """Who counted each of these. A worker may leave it out: what it says is then `server`."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in _COUNTS})


_COUNTS = tuple(Usage.model_fields)
NO_USAGE = Usage.model_construct(set(), sources=NO_SOURCES)


class Failure(Frozen):
    """Why something did not end in a value. Data, not an exception: a join may tolerate it."""

    kind: str
    """Class of the error (`ToolError`, `BudgetExceeded`, …), as in `plait.core.errors`; `Cancelled` for what was
    given up."""
    message: str
    """The cause and, where there is one, the remedy."""
    retryable: bool = False
    lost: bool = False
    """The worker went away: this says nothing about the step itself."""
    usage: Usage = NO_USAGE
    """What the attempt had used by then, as far as its worker knows. The driver moves it into `Failed.usage`."""
    cause: Cause | None = Field(default=None, exclude_if=lambda cause: cause is None)
    """Of what was given up: why."""
    frames: str = Field(default="", exclude_if=lambda frames: not frames)
    """Where code of the user's raised: `file:line in function`, a line for each frame, the innermost last. Told of the
    attempt or step that raised alone: what fails because of it does not repeat it."""

    @property
    def code(self) -> str:
        """The code of its kind (docs/errors.md); `other` for a kind that is not plait's."""
        return code_of(self.kind)

    @property
    def bare(self) -> Failure:
        """The same without `frames`, for what fails because of it."""
        return self.model_copy(update={"frames": ""}) if self.frames else self


class Signals(Frozen):
    """How sure the model was: statistics of the token distributions of one generation, made where the tokens are.

    C_t is DeepConf's token confidence `-(1/k) sum_{j<=k} log p_t,(j)` over the k likeliest tokens (arXiv 2508.15260),
    in nats; higher is more peaked. A group is a full sliding window of `window` tokens, its value the mean of C_t; with
    fewer tokens than a window there is one group, of all of them.
    """

    k: int
    """How many tokens of each position were looked at; -1 the whole vocabulary."""
    window: int = 0
    """Tokens in a group."""
    confidence: float = Field(allow_inf_nan=False)
    """Mean of C_t."""
    tail: float = Field(allow_inf_nan=False)
    """Mean of C_t over the last `window` tokens."""
    bottom: float = Field(allow_inf_nan=False)
    """Mean of the lowest 10 % of the group values (at least one)."""
    lowest: float = Field(allow_inf_nan=False)
    """The lowest group value."""
    entropy: float = Field(allow_inf_nan=False)
    """Mean entropy in nats; what the k tokens leave out counts as one more outcome, so it is a lower bound unless k is
    -1."""
    certainty: float | None = Field(default=None, allow_inf_nan=False)
    """Self-certainty, the mean of KL(uniform || p_t) in nats (arXiv 2502.18581); only with the whole vocabulary."""


class TokenDraws(Frozen):
    """How the tokens of one generation were drawn, for training on them."""

    logprobs: tuple[float, ...] = ()
    """Log-probability (nats) of each of `Result.token_ids`; empty if that is not known of all."""
    end: tuple[int, float] | None = None
    """Id and log-probability of the token that ended the generation, where it is not among `token_ids`."""
    policies: tuple[tuple[int, int], ...] = ()
    """Versions of the weights: `(place, version)` for each place from which on a version drew the tokens, in ascending
    order."""
    processed: bool = False
    """Whether the log-probabilities are those of the distribution that was drawn from: after temperature, `top_p`, the
    form and whatever else `Sampling` sets. Otherwise they are the model's own, at temperature 1."""
    temperature: float | None = None
    """At which the tokens were drawn; `None` if the worker does not know it."""
    top_p: float | None = None
    """The same of `top_p`."""
    form: str = ""
    """Kind of the form that the text was held to; empty for none."""
    others: tuple[str, ...] = ()
    """Names of other settings that changed what could be drawn (`Sampling.others`)."""


class Token(Frozen):
    """A generated token in words."""

    text: str
    logprob: float = Field(allow_inf_nan=False)
    """In nats."""
    top: tuple[tuple[str, Annotated[float, Field(allow_inf_nan=False)]], ...] = ()
    """The likeliest tokens of its position with theirs, if asked for."""


class Result(Frozen):
    """What an attempt (and then its step) ended in."""

    value: JsonValue = None
    """A think step's text, a tool's return value, a merge's verdict."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt as the engine saw it; empty for tools and text-only servers."""
    token_ids: tuple[int, ...] = ()
    """Generated token ids, the stop token included when it was kept."""
    usage: Usage = NO_USAGE
    finish: Finish = "stop"
    logprob: float | None = None
    """Mean log-probability (nats) of the generated tokens, if asked for."""
    signals: Signals | None = None
    """Statistics of the token distributions, if `Sampling.logprobs` asked for more than one token."""
    labels: dict[str, float] = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Log-probabilities (nats) of `Sampling.labels`. A server may leave out some that it finds unlikely."""
    drawn: TokenDraws | None = Field(default=None, exclude_if=lambda drawn: drawn is None)
    """How the tokens were drawn, if `Sampling.token_logprobs` asked for it."""
    tokens: tuple[Token, ...] = Field(default=(), exclude_if=lambda tokens: not tokens)
    """The text's tokens, if `Sampling.top_logprobs` asked for them; empty where they are not known of all."""
    why: str = ""
    """For a join: why the merge chose this value. For a model call: what of it the worker left out, and why."""
    data: JsonValue = Field(default=None, exclude_if=lambda data: data is None)
    """For a join: what the merge measured, for programs (`Verdict.data`)."""
    reasoning: str = Field(default="", exclude_if=lambda reasoning: not reasoning)
    """What the model thought before it answered, from a server that keeps that apart; else it stands in the text."""
    anew: str = Field(default="", exclude_if=lambda anew: not anew)
    """Of a conversation that went on: why it was rendered anew, and not continued token for token."""
    partial: bool = False
    """A budget or deadline cut something that went into this value."""
    extracted: bool = False
    """For a join: the value is an answer that the task has taken from a text already."""
    patch: Plan | None = None
    """For a join: the plan that its merge wants in place of a value."""
    prior: str = Field(default="", exclude=True)
    """Of a step that continues another: what stands in its line between the model's first token and its own text. Set
    by the machine, and not written down: a replay makes it again."""

    @property
    def text(self) -> str:
        """The value as text: itself if it is a string, else its JSON."""
        return as_text(self.value)

    @property
    def length(self) -> int:
        """Generated tokens of its own text, whether it cost them or came out of the result cache."""
        return self.usage.completion + self.usage.reused

    @property
    def line(self) -> str:
        """The text of the whole line of reasoning: from the model's first token, over all steps that this one continues
        (`Think.after`) and what was put between them, to the end of its own text. Votes and tasks read it. For a step
        that continues none it is the value as text.

        >>> Result(value="two.", prior="The answer: forty-").line
        'The answer: forty-two.'
        """
        return self.prior + as_text(self.value)


NOTHING = Result.model_construct(set(), usage=NO_USAGE)
"""Of what has no value to tell. One for all: they are frozen, and a plan may have a million."""


def given_up(cause: Cause | None, words: str) -> Failure:
    """Return the failure of what was given up."""
    return Failure(kind="Cancelled", message=words, cause=cause)


def as_failure(error: BaseException) -> Failure:
    """Turn an exception into the data that a failed step carries."""
    message = writable(str(error) or repr(error))
    lost = isinstance(error, WorkerLost)
    return Failure(kind=type(error).__name__, message=message, retryable=getattr(error, "retryable", False), lost=lost)


_FRAMES = 20


def frames_of(error: BaseException) -> str:
    """Return where an exception was raised, for `Failure.frames`: the innermost 20 frames that are not plait's own."""
    frames: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("plait."):
            frames.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}")
        trace = trace.tb_next
    return writable("\n".join(frames[-_FRAMES:]))

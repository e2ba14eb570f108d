"""Puts the pieces of an OpenAI-compatible server's answer together to a result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from plait.core.interfaces import Progress
from plait.core.ops import Think
from plait.core.result import Finish, Result, Source, Sources, Token, Usage
from plait.core.values import split_reasoning, writable

from .._shared.confidence import ConfidenceTrace, add_position
from .._shared.draws import token_draws
from .._shared.function_calls import MOST_CALLS, CallAssembler, sent_names
from .._shared.stops import opening
from .._shared.thoughts import CLOSE, OPEN
from .wire import ServerDialect, ServerError, stops_here

MOST_PROMPT = 1 << 32
"""Most tokens of a prompt: a server that says more is not believed."""


_HALVES = frozenset(map(chr, range(0xD800, 0xDC00)))
"""First halves of surrogate pairs."""


class AnswerReading:
    """The part of an answer that has come so far. A second stream of the same job goes on where the first broke off.

    An answer is cut at the step's `max_tokens`, whatever the server makes of that limit.
    """

    def __init__(
        self,
        dialect: ServerDialect,
        think: Think,
        tells: bool = False,
        secrets: Sequence[str] = (),
        room: int = 0,
        opened: bool = False,
    ) -> None:
        """Begin. With `tells`, token ids are told with what is new. `secrets` are replaced by `***` in the text.
        `room`: tokens of thoughts that may come beyond `max_tokens`. `opened`: the text begins within a block of
        thoughts."""
        self._sampling, self._room = think.sampling, room
        self._block: Literal["maybe", "in", "over"] = "maybe"
        """Where the text is in a block of thoughts at its beginning, if it has one."""
        if dialect.endpoint != "chat/completions" or CLOSE in think.begin:
            self._block = "over"
        self._chat = self._block == "maybe"
        self._opened = opened and self._chat
        self._head = ""
        """The text so far, until such a block is over."""
        self.thought_tokens: int
        self.thought_tokens = self._thoughts_begun = 0
        """How many of `count` are of thoughts, as far as their pieces tell."""
        self._most = MOST_CALLS if think.parallel_tool_calls else 1
        self._keeps = think.sampling.keep_stop and not dialect.ids
        self._tells = tells
        self._stops = think.sampling.stop if stops_here(dialect, think) else ()
        self._secrets = secrets
        self._held = ""
        """The end of the text, which may be the beginning of a stop text or a secret."""
        self._half: dict[str, str] = {}
        """The first half of a character that the text, or the thoughts, ended in."""
        self._texts: list[str] = []
        self._untold = ""
        """Text that is known from token ids and that the server has not shown."""
        self._past = 0
        """How many of `ids` another attempt had generated."""
        self._begun = 0
        """Tokens when the stream began that is read now."""
        self._logprobs = 0.0
        self._each: list[float] = []
        self.processed = False
        """Whether the server's log-probabilities are those of the distribution that it draws from."""
        self._scored = 0
        self._tokens: list[Token] = []
        self._trace = ConfidenceTrace.of(think.sampling)
        self._labels: dict[str, float] = {}
        self.told: Usage | None = None
        """What the server says of the stream that is read now, so far."""
        self.billed: bool = False
        """That is all of it: it was said at its end."""
        self.ended: bool = False
        """The server ended it, and not we."""
        self._calls: CallAssembler | None = None
        """Calls of functions, if it made any."""
        self._names = {sent: own for own, sent in sent_names(think).items()} if think.tools else {}
        self._aligned = True
        """The ids are those of the text."""
        self.size: int = 0
        """Bytes of text that the server sent."""
        self._beyond = 0
        """Tokens that came after what is wanted."""
        self._thoughts: list[str] = []
        """Reasoning that the server keeps apart."""
        self.ids: list[int] = []
        self.prompt_ids: list[int] = []
        self.count: int = 0
        """Tokens so far; where the server does not say, one a piece of text."""
        self.chunks: int = 0
        """JSON objects so far."""
        self.finish: Finish | None = None
        self.stop: int | str | None = None
        """The stop token or text that ended the answer, where the server says it."""
        self.says_stop: bool = False
        self.stopped_here: bool = False
        """We found a stop text: the rest is not wanted."""
        self.overran: bool = False
        """The server generated more than the step's `max_tokens`: the rest was cut off and is not wanted."""

    @property
    def fresh(self) -> bool:
        """Whether the stream that is read now has said nothing yet."""
        return self.count == self._begun

    @property
    def past(self) -> tuple[int, ...]:
        """The ids after which a further stream can go on; none unless all are known."""
        return tuple(self.ids) if self.prompt_ids and len(self.ids) == self.count + self._past else ()

    def take_up(self, prompt_ids: Sequence[int], past: Sequence[int], text: str, shown: int) -> None:
        """Resume a lost attempt: start behind its token ids; `shown` characters of their text were streamed already."""
        self.prompt_ids, self.ids, self._past, self._tells = list(prompt_ids), list(past), len(past), True
        self.go_on(text, shown)

    def go_on(self, text: str, shown: int | None = None) -> None:
        """Read another stream, which goes on where this one broke off. `text` is the text of all ids so far."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        shown = len(self.text) if shown is None else shown
        self._untold, self._texts, self._held = text[shown:], [text[:shown]], ""
        self._begun, self.told, self.billed, self.ended, self.size = self.count, None, False, False, 0
        self._thoughts_begun = self.thought_tokens

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts) + self._held + self._untold

    def feed(self, chunk: object) -> Progress | None:
        """Take one JSON object of the stream, or a whole answer, and return what it adds. Raises `ServerError`."""
        self.chunks += 1
        if not isinstance(chunk, Mapping):
            raise ServerError(
                f"the server's answer is not a JSON object but {str(chunk)[:80]!r}: is it OpenAI-compatible?"
            )
        if chunk.get("error") or chunk.get("object") == "error":
            raise reported(chunk.get("error") or chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise ServerError(
                f"the server's answer has no `choices` ({str(dict(chunk))[:80]}): is it OpenAI-compatible?"
            )
        choice = choices[0] if choices else {}
        if not isinstance(choice, Mapping):
            raise ServerError("the server's `choices` hold no objects: is it OpenAI-compatible?")
        self.ended = self.ended or choice.get("finish_reason") is not None
        self._read_usage(chunk.get("usage"), not choices)
        if not choices:
            return None
        if self.left:
            message = choice.get("delta") or choice.get("message") or choice
            self._beyond += any(message.get(name) for name in ("text", "content", "reasoning_content", "reasoning"))
            return None
        prompt_ids = choice.get("prompt_token_ids") or chunk.get("prompt_token_ids")
        if prompt_ids and not self.prompt_ids:
            self.prompt_ids = list(prompt_ids)
        return self._piece(choice)

    def _piece(self, choice: Mapping[str, Any]) -> Progress | None:
        message = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") if "text" in choice else message.get("content")
        if text is not None and not isinstance(text, str):
            raise ServerError(f"the server's text is a {type(text).__name__}: is it OpenAI-compatible?")
        came, text = bool(text), self._characters("text", text or "", choice)
        ids = choice.get("token_ids") or ()
        self.size += len(text.encode())
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought:
            self._thoughts.append(self._characters("thought", thought, choice))
        thinking = self._thinks(text, bool(thought))
        scores = [] if thinking else _scores(choice.get("logprobs"))
        wanted = self._sampling.logprobs or self._sampling.top_logprobs is not None
        if wanted and text and not scores and not self._scored:
            raise ServerError(
                "the server gives no log-probabilities, and this step asks for them: use a server that does (vLLM, "
                "SGLang), or a planner and policies that do without"
            )
        if self._sampling.labels and text and not self._labels and not thinking:
            self._labels = _labelled(self._sampling.labels, choice.get("logprobs"))
        if self._trace is not None and scores:
            self._look(self._trace, choice.get("logprobs"))
        calls = message.get("tool_calls")
        tokens = len(ids) or len(scores) or int(bool(came or thought or calls))
        self._end(choice)
        whole = self.told is not None and self.finish is not None and self.fresh
        counted = max(tokens, min(self.generated, len(text))) if whole else tokens
        room = self._left(thinking, whole)
        self.thought_tokens += tokens if thinking else 0
        if counted > room:
            self.overran, self.finish, self.stop = True, "length", None
            # Which of the text belongs to which token is not known within a piece.
            text, ids, self._aligned = text[: len(text) * room // counted], ids[:room], self._aligned and not room
        self.ids += ids
        self.count += tokens
        self._logprobs += sum(scores)
        if self._sampling.token_logprobs:
            self._each += scores
        self._scored += len(scores)
        if self._sampling.top_logprobs is not None:
            self._tokens += tokens_told(choice.get("logprobs"), self._sampling.top_logprobs)
        if calls or self._calls is not None:
            text += self._called(calls)
        if self.finish is not None and self._keeps and isinstance(self.stop, str):
            text += self.stop
        if self._untold and (text or self.finish is not None):
            text, self._untold = self._untold + text, ""
        text = self._release(text)
        if not text and not tokens:
            return None
        trace = self._trace
        return Progress(
            text,
            tokens,
            sum(scores) / len(scores) if scores else None,
            tuple(ids) if self._tells else (),
            trace.group if trace else None,
            trace.lowest if trace else None,
        )

    def _characters(self, what: str, text: str, choice: Mapping[str, Any]) -> str:
        """Return a piece of text in whole characters: the first half of one at its end waits for the second, which
        servers that count in UTF-16 may send apart. A half that has no other is replaced: no file can hold it."""
        text = self._half.pop(what, "") + text
        if text[-1:] in _HALVES and choice.get("finish_reason") is None:
            text, self._half[what] = text[:-1], text[-1]
        return writable(text)

    def _thinks(self, text: str, thought: bool) -> bool:
        """Whether a piece is of thoughts: the server says so, or it stands in a block at the beginning."""
        if self._block == "over" or not text:
            return thought and not text
        self._head += text
        begun = self._head.lstrip()
        if self._opened and not self._thoughts:
            self._block = "over" if CLOSE in begun else "in"
            return True
        if self._block == "maybe" and not begun.startswith(OPEN):
            self._block = "maybe" if OPEN.startswith(begun) else "over"
            return False
        self._block = "over" if CLOSE in begun else "in"
        return True

    def _left(self, thinking: bool, whole: bool) -> int:
        """Return how many more tokens are wanted. Thoughts have room of their own; of an answer in one piece it is not
        known how many of its tokens are thoughts."""
        spoken = self._past + self.count - self.thought_tokens
        both = self._sampling.max_tokens + self._room - self._past - self.count
        return max(0, both if thinking or whole else min(both, self._sampling.max_tokens - spoken))

    def _parts(self) -> tuple[str, str]:
        """Return the thoughts so far, and what was said."""
        if self._thoughts or not self._chat:
            return "".join(self._thoughts), self.text
        if self._opened and self.finish == "length" and CLOSE not in self.text:
            return self.text.strip(), ""
        return split_reasoning(self.text)

    @property
    def thought(self) -> str:
        """The thoughts so far."""
        return self._parts()[0]

    @property
    def closed_only(self) -> bool:
        """Whether the text ends a block of thoughts that nothing in it began."""
        head, end, _ = self.text.partition(CLOSE)
        return self._chat and not self._thoughts and bool(end) and OPEN not in head

    @property
    def cut_in_thoughts(self) -> bool:
        """Whether the answer was cut before its first word that is no thought."""
        thought, spoken = self._parts()
        spoken = split_reasoning(spoken)[1] if self._chat and self._thoughts else spoken
        return self.finish == "length" and bool(thought) and not spoken.strip()

    def _called(self, calls: object) -> str:
        """Return the text of the calls that are complete now."""
        made = self._calls = self._calls or CallAssembler(self._most, self._names)
        text = made.feed(calls)
        return text + made.close() if self.finish is not None else text

    def _look(self, trace: ConfidenceTrace, logprobs: object) -> None:
        """Take the likeliest tokens' log-probabilities of the positions of one piece."""
        for position in likeliest(logprobs):
            if len(position) < 2:
                raise ServerError(
                    "the server gives the log-probability of the sampled token alone, and this step asks for those of "
                    f"{self._sampling.logprobs}: ask for logprobs=1, or use a server that gives them (vLLM, SGLang)"
                )
            add_position(trace, position)

    def due(self) -> bool:
        """Whether the confidence of the group has to be told now to a policy that gets no deltas."""
        return self._trace is not None and self._trace.window > 0 and self._trace.due()

    def _end(self, choice: Mapping[str, Any]) -> None:
        for key in ("stop_reason", "matched_stop"):
            if key in choice:
                self.says_stop = True
                self.stop = choice[key]
        match choice.get("finish_reason"):
            case None:
                pass
            case "length":
                self.finish = "length"
            case "content_filter":
                raise ServerError("the server's content filter cut the answer: change the prompt, or ask another model")
            case "abort" | "error":
                raise ServerError("the server gave this request up: try again", retryable=True)
            case _:
                self.finish = "stop"

    def _release(self, text: str) -> str:
        """Return the text that may be shown now: up to a stop text, without secrets, and without an end that may be the
        beginning of either."""
        if not (self._stops or self._secrets):
            self._texts.append(text)
            return text
        text, self._held = self._held + text, ""
        ends = [(place + len(stop)) for stop in self._stops if (place := text.find(stop)) >= 0]
        if ends:
            text, self.stopped_here, self.finish = text[: min(ends)], True, "stop"
        for secret in self._secrets:
            if secret in text:
                text, self._aligned = text.replace(secret, "***"), False
        if self.finish is None and (held := opening(text, (*self._stops, *self._secrets))):
            text, self._held = text[: -len(held)], held
        self._texts.append(text)
        return text

    def _read_usage(self, usage: object, last: bool) -> None:
        if isinstance(usage, Mapping):
            details, parts = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
            prompt = _whole(usage.get("prompt_tokens"), MOST_PROMPT)
            completion = _whole(usage.get("completion_tokens"), math.inf)
            read = details.get("cached_tokens") if isinstance(details, Mapping) else None
            thought = parts.get("reasoning_tokens") if isinstance(parts, Mapping) else None
            cached, thoughts = _whole(read, prompt), _whole(thought, completion)
            by = Sources(cached=_said(read, cached), thoughts=_said(thought, thoughts))
            self.told = Usage(prompt=prompt, cached=cached, completion=completion, thoughts=thoughts, sources=by)
            self.billed = (last or self.ended) and completion > 0

    @property
    def left(self) -> bool:
        """Whether what comes now is not wanted any more."""
        return self.stopped_here or self.overran

    @property
    def pieces(self) -> int:
        """Pieces of the stream that is read now."""
        return self.count - self._begun + self._beyond

    @property
    def thoughts_read(self) -> int:
        """Tokens of thoughts of the stream that is read now, as its pieces tell."""
        return self.thought_tokens - self._thoughts_begun

    @property
    def went_on(self) -> bool:
        """Whether the server said more after that."""
        return self._beyond > 0

    @property
    def ids_complete(self) -> bool:
        """Whether the server said the ids of all tokens of the stream that is read now."""
        return bool(self.ids) and len(self.ids) == self.count + self._past

    @property
    def generated(self) -> int:
        """Tokens of the stream that is read now. The server's count is believed within bounds: hidden reasoning is
        within the step's limit, and every other token has at least one byte."""
        seen = self.pieces
        if self.told is None or not self.told.completion:
            return seen
        generated = min(self.told.completion, max(self._sampling.max_tokens + self._room, seen, self.size))
        return max(generated, seen) if self.ids else generated

    def result(self, finish: Finish) -> Result:
        """Return the result of an answer that ended so."""
        labels = self._labels
        thoughts, outside = self._parts()
        spoken = outside.lstrip() if thoughts and not self._thoughts else self.text
        text = max(labels, key=lambda label: labels[label]) if labels else spoken
        whole = self._aligned and text == self.text and bool(self.prompt_ids) and (bool(self.ids) or not self.text)
        return Result(
            value=text,
            prompt_ids=tuple(self.prompt_ids) if whole else (),
            token_ids=tuple(self.ids) if whole else (),
            finish=finish,
            logprob=self._logprobs / self._scored if self._sampling.logprobs and self._scored else None,
            signals=self._trace.signals() if self._trace else None,
            reasoning=thoughts,
            labels=labels,
            tokens=self._told_tokens(),
            drawn=token_draws(self._sampling, self._each, processed=self.processed)
            if whole and self._each and len(self._each) == len(self.ids)
            else None,
        )

    def _told_tokens(self) -> tuple[Token, ...]:
        """Return the tokens of the text; none where some are not known, or stand apart from it, or spell a secret."""
        text, at, kept = self.text, 0, list[Token]()
        for token in self._tokens:
            if at >= len(text):  # of what ended it
                break
            kept.append(token)
            at += len(token.text)
        whole = "".join(token.text for token in self._tokens)
        hidden = self._thoughts or self._calls is not None or any(secret in whole for secret in self._secrets)
        return () if self._past or hidden else tuple(kept)


def reported(error: object) -> ServerError:
    """Return the error that an error object inside a stream means."""
    fields: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": str(error)}
    code = fields.get("code")
    status = int(code) if isinstance(code, int | str) and str(code).isdigit() else None
    again = status is None or status == 429 or status >= 500
    return ServerError(
        f"the server broke an answer off: {fields.get('message') or fields}", status=status, retryable=again
    )


def _whole(count: object, most: float) -> int:
    """Return a count of the server, or 0 for a value that is no count."""
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= most:
        return 0
    return int(min(count, 1 << 62))


def _said(count: object, read: int) -> Source | None:
    """Return who counted what was read of a count of the server: nobody, where that is no count or not there."""
    return None if count is None or (count and not read) else "server"


def _scores(logprobs: object) -> list[float]:
    """Return the sampled tokens' log-probabilities, in nats, of a completions or a chat choice."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [float(entry["logprob"]) for entry in content]
    return [float(score) for score in logprobs.get("token_logprobs") or () if score is not None]


def _labelled(labels: Sequence[str], logprobs: object) -> dict[str, float]:
    """Return the log-probabilities of those labels that are among the likeliest tokens of the first position. Raises
    `ServerError` if there are none."""
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


def likeliest(logprobs: object) -> list[list[float]]:
    """Return the log-probabilities of the likeliest tokens, a list for each position of a completions or chat choice.
    The sampled token's may be one more among them."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [[float(top["logprob"]) for top in entry.get("top_logprobs") or ()] for entry in content]
    logprob = logprobs.get("top_logprobs")
    if not isinstance(logprob, list):
        return [[] for score in logprobs.get("token_logprobs") or () if score is not None]
    return [[float(value) for value in (tops or {}).values()] for tops in logprob]


def tokens_told(logprobs: object, most: int) -> list[Token]:
    """Return the tokens of a completions or a chat choice, with at most so many of the likeliest beside each."""

    def near(value: object) -> float:
        return max(-9999.0, min(0.0, float(value))) if isinstance(value, int | float) else -9999.0

    def token(text: object, score: object, tops: Iterable[tuple[object, object]]) -> Token:
        top = sorted(((writable(str(word)), near(value)) for word, value in tops), key=lambda pair: -pair[1])
        return Token(text=writable(str(text)), logprob=near(score), top=tuple(top[:most]))

    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [
            token(
                entry["token"], entry["logprob"], [(x["token"], x["logprob"]) for x in entry.get("top_logprobs") or ()]
            )
            for entry in content
        ]
    texts, scores = logprobs.get("tokens") or (), logprobs.get("token_logprobs") or ()
    tops = logprobs.get("top_logprobs") or [None] * len(texts)
    return [token(text, score, (top or {}).items()) for text, score, top in zip(texts, scores, tops, strict=False)]

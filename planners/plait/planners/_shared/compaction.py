"""Compaction: a conversation whose context is too large continues with its middle cleared, summarised or dropped.

The system text and the question stay in front, the last turns and pinned calls behind them; a call and its results stay
or go together. Why, and what bounds it: docs/adr/0032-compaction.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, model_validator

from plait.core.call_config import CallConfig, Uses, WithCallConfigs
from plait.core.chat import Message, assistant_message, with_prompt
from plait.core.declarations import Free, TokenCount
from plait.core.errors import BudgetExceeded, ContextOverflow, PlannerError
from plait.core.flow import Context
from plait.core.ops import Function
from plait.core.step_handles import StepFailed, Trajectory
from plait.core.vocabulary import Count

__all__ = ["Compaction", "Compactor", "shorten", "split_blocks"]

TARGET_RATIO = 0.5
"""Size of a compacted context as a fraction of the limit: each compaction then makes room for many turns."""
TOKENS_PER_CHARACTER = 0.25
"""Estimate before the model's first report of a prompt size."""
MESSAGE_CHARACTERS = 16
"""Characters that a chat template adds to a message, about."""
MIN_RESULT_CHARACTERS = 200
"""A result is not cut below this size, and one that is no longer is not cleared."""
MAX_RETRIES = 2
"""Maximum number of compactions because the model rejected the same turn."""
ROLE = "compact"

_SUMMARY = """\
The messages above are removed from the conversation, apart from the question, because they no longer fit. Write down \
what is needed to continue without them: what was found out, with names, numbers and identifiers as they stand there; \
what was decided and why; what failed; what is still open and what is to be done next. Keep what an earlier summary \
says and is still needed. Be brief."""
_NOTE = "[{turns} earlier turns are left out here.{rest}]"
_CLEARED = "[This result of {size:,} characters was removed to save space{how}.]"


class Compaction(WithCallConfigs):
    """The rule. As an option also the mode alone: `compaction=off`."""

    mode: Literal["summary", "summary-only", "clear", "truncate", "off"] = Field(
        default="summary-only",
        description="`summary-only`: a summary by the model replaces all but the last turns (ReSum, arXiv 2509.13313; "
        "LangChain's SummarizationMiddleware). `clear`: old tool results are replaced by a note (observation masking, "
        "arXiv 2508.21433; Claude's `clear_tool_uses`). `summary`: the same, and if that does not halve the context, a "
        "summary, which cannot read what was cleared. `truncate`: old turns are dropped (OpenAI's `truncation: auto`). "
        "`off`: a prompt that is too long fails its step.",
    )
    above_tokens: Annotated[int | None, TokenCount()] = Field(
        default=None,
        ge=1,
        description="Maximum number of tokens of a turn's prompt; a longer one is compacted to half of this. By "
        "default, prompts are compacted when the model rejects one as too long.",
    )
    above_turns: Count | None = Field(default=None, ge=1, description="Maximum number of turns. By default no limit.")
    keep_turns: Count = Field(default=3, ge=1, description="Number of last turns that stay unchanged.")
    pinned_tools: Annotated[tuple[str, ...], Free()] = Field(
        default=(), description="Tools whose calls and results stay unchanged."
    )
    summary: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0, stream=False),
        description="The call that summarises turns. Its template is the instruction after them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_mode(cls, given: object) -> object:
        return {"mode": given} if isinstance(given, str) else given


Block = tuple[Message, ...]


def split_blocks(messages: Iterable[Message]) -> list[Block]:
    """Return messages in blocks that stay or go together: an assistant's message, its results and what follows."""
    blocks: list[list[Message]] = []
    for message in messages:
        if message.role == "assistant" or not blocks:
            blocks.append([])
        blocks[-1].append(message)
    return [tuple(block) for block in blocks]


@dataclass(slots=True)
class Compactor:
    """The rule for one conversation, and what it has replaced so far."""

    ctx: Context
    options: Compaction
    system: Sequence[Message]
    head: list[Message]
    """The messages up to the question, without the system text."""
    more: str = ""
    """Name of the function that reads a cleared result by its id."""
    state: Callable[[], str] = str
    """Describes the agents at work, for the note about turns that are left out."""
    turns: int = 0
    """Number of turns that are left out."""
    summary: str = ""
    """Summary of these turns."""
    limit: int | None = None
    """Limit learned from a rejected prompt."""
    used: int = 0
    """Tokens of the context after the last turn, as reported."""
    characters: int = 0
    """Characters of the same context."""
    counted: tuple[int, Message | None, int] = (0, None, 0)
    """Number of messages counted last, the last of them, and their characters."""

    def __post_init__(self) -> None:
        last = max((place for place, message in enumerate(self.head) if message.role == "user"), default=-1)
        del self.head[last + 1 :]  # results after the question are turns

    @property
    def opened(self) -> tuple[Message, ...]:
        """The messages before the first block: up to the question, with a note about the turns that are left out."""
        rest = self.state() + (f" A summary of them:\n{self.summary}" if self.summary else "")
        return with_prompt(self.head, _NOTE.format(turns=self.turns, rest=rest) if self.turns else "")

    def tokens(self, *messages: Iterable[Message]) -> int:
        """Return the estimated tokens of messages, at the rate of the last context that the model reported."""
        return self._estimate(sum(map(_characters, messages)))

    def _estimate(self, characters: int) -> int:
        known = self.used and self.characters
        return math.ceil((self.used / self.characters if known else TOKENS_PER_CHARACTER) * characters)

    def _count(self, talk: Sequence[Message]) -> int:
        """Return the characters of a context. Only new messages are counted: a turn costs the same at any length."""
        number, last, characters = self.counted
        if not 0 < number <= len(talk) or talk[number - 1] is not last:
            number, characters = 0, _characters(self.system)
        characters += _characters(talk[number:])
        self.counted = (len(talk), talk[-1] if talk else None, characters)
        return characters

    def note_usage(self, used: int, talk: Sequence[Message], *answer: Message) -> None:
        """Record the tokens of a context (0: unknown): the system text, `talk` and `answer`."""
        if used:
            self.used, self.characters = used, self._count(talk) + _characters(answer)

    def exceeded_limit(self, talk: Sequence[Message]) -> int:
        """Return the limit that the next prompt exceeds, in tokens, or 0."""
        options = self.options
        if not (options.above_tokens or options.above_turns or self.limit) or not self._can_shorten(talk):
            return 0
        expected = self._estimate(self._count(talk))
        limit = min(filter(None, (options.above_tokens, self.limit)), default=expected)
        turns = len(split_blocks(talk[len(self.opened) :])) if options.above_turns else 0
        return limit if expected > limit or turns > (options.above_turns or 0) else 0

    def learn_limit(self, failed: StepFailed, talk: Sequence[Message], retries: int) -> int:
        """Return the limit to compact to after the model rejected a prompt. Raises the failure if compaction is off, if
        it would repeat the turn too often, and if nothing can be left out."""
        if failed.failure.kind != ContextOverflow.__name__ or not self._can_shorten(talk) or retries >= MAX_RETRIES:
            raise failed
        size = self.tokens(self.system, talk)
        self.limit = min(size * 9 // 10, self.used or size) >> retries  # the last accepted context is a safe limit
        return self.limit

    def cut_limit(self, turn: Trajectory, talk: Sequence[Message], retries: int) -> int:
        """Return the limit to compact to if an answer was cut at the end of the model's context, else 0."""
        result, op = turn.result, turn.step.op
        if op.kind != "think" or result.finish != "length" or result.partial or retries >= MAX_RETRIES:
            return 0
        size, most = result.usage.prompt + result.length, op.sampling.max_tokens
        if not result.usage.prompt or result.length >= most or not self._can_shorten(talk):
            return 0
        self.limit = max(size - most, size // 2)
        return self.limit

    def _can_shorten(self, talk: Sequence[Message]) -> bool:
        """Whether something can be left out. If not, the model decides whether the prompt is too long."""
        return self.options.mode != "off" and (len(talk) > len(self.opened) or len(self.head) > 1)

    async def compact(self, talk: Sequence[Message], limit: int, functions: Sequence[Function]) -> list[Message]:
        """Return a conversation in at most `limit` tokens, if possible in half of that. Raises `PlannerError`."""
        options, size = self.options, self.tokens(self.system, talk)
        blocks = split_blocks(talk[len(self.opened) :])
        # Clearing leaves the number of turns as it is.
        if options.mode in ("summary", "clear") and len(blocks) <= (options.above_turns or len(blocks)):
            old = max(0, len(blocks) - options.keep_turns)
            cleared = [*(self._edit(block, self._clear) for block in blocks[:old]), *blocks[old:]]
            kept = [*self.opened, *_flat(cleared)]
            if cleared != blocks and self.tokens(self.system, kept) <= limit * TARGET_RATIO:
                await self._record("cleared", old, size, kept)
                return kept
        keep, folded = self._choose(blocks, limit)
        middle, tail = blocks[: len(blocks) - keep], blocks[len(blocks) - keep :]
        prompt, reason = [*self.opened, *_flat(middle)], ""
        if folded:  # the conversation before the question, too
            middle, self.head = [*split_blocks(self.head[:-1]), *middle], self.head[-1:]
        gone = [block for block in middle if not self._is_pinned(block)]
        if options.mode.startswith("summary") and gone:
            # Without a new summary the earlier one stays: it is all that is left of its turns.
            summary, reason = await self._summarise(prompt, gone, limit, functions)
            self.summary = summary or self.summary
        self.turns += len(gone)
        kept = self._cut_results([*(block for block in middle if self._is_pinned(block)), *tail], limit)
        how = "left out" if reason or not options.mode.startswith("summary") else "summarised"
        reason = "without their results the context is still too long" if options.mode == "clear" else reason
        await self._record(how, len(gone), size, kept, reason)
        return kept

    def _choose(self, blocks: Sequence[Block], limit: int) -> tuple[int, bool]:
        """Return the number of last turns to keep, and whether the conversation before the question is left out."""
        most = min(self.options.keep_turns, len(blocks))
        room = limit * TARGET_RATIO - self.tokens(self.system)
        keeps: Iterable[int] = range(len(blocks), most - 1, -1)  # all that fits: nothing else is left of other turns
        if self.options.mode.startswith("summary"):
            room, keeps = room - self._summary_tokens(limit), (most,)
        least = min(1, most)
        choices = [*((keep, False) for keep in keeps), (least, False), (least, len(self.head) > 1)]
        for keep, folded in choices:
            last = len(blocks) - keep
            kept = [block for place, block in enumerate(blocks) if place >= last or self._is_pinned(block)]
            if self.tokens(self.head[-1:] if folded else self.head, _flat(kept)) <= room:
                return keep, folded
        return choices[-1]

    def _summary_tokens(self, limit: int) -> int:
        """Return the token limit of a summary."""
        return min(self.options.summary.max_tokens or limit, max(1, limit // 4))

    async def _summarise(
        self, opening: Sequence[Message], gone: Sequence[Block], limit: int, functions: Sequence[Function]
    ) -> tuple[str, str]:
        """Return the summary of some turns, or an empty text and the reason why there is none."""
        config, reason = self.options.summary, ""
        for messages in (opening, _flat(self._edit(block, self._clear) for block in split_blocks(opening))):
            line = self.ctx.think(
                config.parts(_SUMMARY),
                config,
                name=self.ctx.host.place().next("compact"),
                label=f"compact {len(gone)} turns",
                role=ROLE,
                chat=True,
                messages=[*self.system, *messages],
                tools=functions,  # the same as in the turns, so that their prefix is cached
                tool_choice="none",
                max_tokens=self._summary_tokens(limit),
            )
            try:
                await line
            except StepFailed as failed:
                if failed.failure.kind in (BudgetExceeded.__name__, "Cancelled"):
                    raise
                reason = f"the summary failed: {failed.failure.message}"
                continue  # once more, with cleared results
            text = assistant_message(line.text).text.strip()
            if not text:
                return "", "the summary is empty"
            if len(text) >= _characters(_flat(gone)):
                return "", "the summary is not shorter than the turns that it replaces"
            return text, ""
        return "", reason

    def _is_pinned(self, block: Block) -> bool:
        return any(_result_of(message) in self.options.pinned_tools for message in block if _result_of(message))

    def _edit(self, block: Block, change: Callable[[Message], Message]) -> Block:
        """Return a block with changed results, or unchanged if it is pinned."""
        kept = self._is_pinned(block)
        return block if kept else tuple(change(message) if _result_of(message) else message for message in block)

    def _clear(self, message: Message) -> Message:
        text = message.text
        if len(text) <= MIN_RESULT_CHARACTERS:
            return message
        place = message.tool_call_id or text.partition("(")[2].partition(")")[0]
        how = f'; read it with {self.more}(id="{place}", start=0, end={len(text)})' if self.more else ""
        prefix = "" if message.role == "tool" else text.partition(":")[0] + ": "
        return message.model_copy(update={"content": prefix + _CLEARED.format(size=len(text), how=how)})

    def _cut_results(self, blocks: Sequence[Block], limit: int) -> list[Message]:
        """Return the whole conversation with these blocks, and cut their results if it exceeds the limit."""
        kept = [*self.opened, *_flat(blocks)]
        size, most = self.tokens(self.system, kept), max((len(message.text) for message in kept), default=0)
        while size > limit and most > MIN_RESULT_CHARACTERS:
            most //= 2
            cut = partial(_shorten_message, most=most)
            kept = [*self.opened, *_flat(self._edit(block, cut) for block in blocks)]
            size = self.tokens(self.system, kept)
        if size > limit:
            raise PlannerError(
                f"the context has about {size:,} tokens after compaction, and the limit is {limit:,}. Lower keep_turns "
                "or observation_chars, pin fewer tools, or raise above_tokens if the model's context allows it"
            )
        return kept

    async def _record(self, how: str, turns: int, before: int, kept: Sequence[Message], reason: str = "") -> None:
        """Make the step that displays the compaction."""
        after = self.tokens(self.system, kept)
        label = f"compacted: {turns} turns {how}, {before:,} to {after:,} tokens" + (f" ({reason})" if reason else "")
        data = {"how": how, "turns": turns, "before": before, "after": after}
        name = self.ctx.host.place().next("compacted")  # several conversations of a flow have names of their own
        await self.ctx.answer(label, reason, data=data, name=name, label=label[:200])
        self.counted = (0, None, 0)  # the last message may be the same
        self.used, self.characters = after, self._count(kept)


def _flat(blocks: Iterable[Block]) -> list[Message]:
    return [message for block in blocks for message in block]


def _characters(messages: Iterable[Message]) -> int:
    """Return the characters of messages as the model reads them, about."""
    return sum(map(_message_characters, messages))


def _message_characters(message: Message) -> int:
    content = message.said or message.content or ""
    calls = 0 if message.said else sum(len(call.function.arguments) for call in message.tool_calls)
    return MESSAGE_CHARACTERS + len(content if isinstance(content, str) else message.text) + calls


def _result_of(message: Message) -> str:
    """Return the tool whose result a message holds; empty for other messages."""
    if message.role == "tool":
        return message.name or "tool"
    if message.role == "user" and message.text.startswith("Observation of "):
        return message.text[len("Observation of ") :].partition(" (")[0]
    return ""


def _shorten_message(message: Message, most: int) -> Message:
    return message.model_copy(update={"content": shorten(message.text, most)})


def shorten(text: str, most: int, more: str = "") -> str:
    """Return a text of at most about `most` characters: its head and its tail if it is longer. `more`: how to read the
    rest."""
    head = most * 3 // 5
    left = f"[{len(text) - most:,} characters are left out{more}]"
    return text if len(text) <= most else f"{text[:head]}\n{left}\n{text[head - most :]}"

"""What a REPL session remembers: how requests are made, each question with its steps' stories and answer.

Plain data and its two written forms (JSON, which can be loaded again, and Markdown). It runs nothing, and does not know
how anything is shown.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.terminal import safe

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ...core.plan import Budget, Plugin
    from ...runtime.client.answer import Answer, News, StepNews

__all__ = ["Asked", "Strand", "Turn", "as_markdown", "dump", "load", "spelled"]

FORMAT = 1


def spelled(plugin: Plugin | None) -> str:
    """Return a plugin as it is written on a command line: `sample:n=8`."""
    if plugin is None:
        return ""
    options = ",".join(f"{key}={_value(value)}" for key, value in plugin.options.items())
    return plugin.name + (f":{options}" if options else "")


def _value(value: JsonValue) -> str:
    if isinstance(value, str) and value and "," not in value and value == value.strip():
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, separators=(",", ":"))


@dataclass(slots=True)
class Asked:
    """How requests are made. What is `None` is the configuration's."""

    task: Plugin | None = None
    planner: Plugin | None = None
    policies: tuple[Plugin, ...] | None = None
    merge: Plugin | None = None
    n: int | None = None
    seed: int | None = None
    budget: Budget | None = None

    def options(self) -> dict[str, Any]:
        """Return the options of `AsyncOrchestrator.submit`."""
        names = ("task", "planner", "policies", "merge", "n", "seed", "budget")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def written(self) -> dict[str, JsonValue]:
        """Return it as it is saved."""
        options = self.options()
        if self.policies is not None:
            options["policies"] = [spelled(each) for each in self.policies]
        for name in ("task", "planner", "merge"):
            if name in options:
                options[name] = spelled(options[name])
        if self.budget is not None:
            options["budget"] = self.budget.model_dump(exclude_none=True)
        return options

    @classmethod
    def read(cls, written: dict[str, Any]) -> Asked:
        """Return what `written` was made of. Raises `PluginError`, `ValidationError`, `TypeError`."""
        from ...core.plan import Budget
        from ...runtime.plugins.spec import parse_plugin

        given = dict(written)
        for name in ("task", "planner", "merge"):
            if name in given:
                given[name] = parse_plugin(given[name])
        if "policies" in given:
            given["policies"] = tuple(map(parse_plugin, given["policies"]))
        if "budget" in given:
            given["budget"] = Budget.model_validate(given["budget"])
        return cls(**given)


@dataclass(slots=True)
class Strand:
    """One step of a run and its story."""

    step: str
    name: str
    op: str
    owner: str | None = None
    label: str = ""
    state: str = "waiting"
    moves: list[tuple[float, str, str]] = field(default_factory=list[tuple[float, str, str]])
    """Seconds after the run began, the new state, why."""
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    logprob: float | None = None
    """Mean, nats."""
    confidence: float | None = None
    """DeepConf's, nats."""
    value: JsonValue = None
    text: str = ""
    """What it has generated so far."""
    _heard: int = 0

    @property
    def path(self) -> str:
        """Its id without that of the run."""
        return self.step.partition(":")[2]

    @property
    def ended(self) -> bool:
        """Whether it will not move any more."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def reason(self) -> str:
        """Why it is in the state that it is in."""
        return self.moves[-1][2] if self.moves else ""

    @property
    def sure(self) -> str:
        """How sure the model was, in words, if that is known."""
        if self.logprob is not None:
            return f"p={math.exp(min(0.0, self.logprob)):.2f}"
        return "" if self.confidence is None else f"c={self.confidence:.1f}"

    def span(self) -> tuple[float | None, float | None]:
        """Return when it was first on a worker, and when it ended."""
        began = next((at for at, state, _ in self.moves if state == "running"), None)
        return began, self.moves[-1][0] if self.moves and self.ended else None

    def take(self, news: StepNews) -> None:
        """Take news of a move."""
        if news.state != "waiting" or self.moves:  # it enters the plan waiting, which is no move
            self.moves.append((news.at, news.state, news.reason))
        self.state, self.label = news.state, news.label
        self.tokens = max(self.tokens, news.tokens)
        self.prompt, self.cached = max(self.prompt, news.prompt), max(self.cached, news.cached)
        if news.value is not None:
            self.value = news.value
        if news.logprob is not None:
            self.logprob = news.logprob
        if news.signals is not None:
            self.confidence = news.signals.confidence

    def hear(self, text: str, tokens: int, logprob: float | None) -> None:
        """Take news of generated text; `tokens` is how many it has generated in all."""
        if tokens < self._heard:  # a new attempt
            self.text, self._heard = "", 0
        more = tokens - self._heard
        if logprob is not None and more > 0:
            before = self.logprob if self.logprob is not None and self._heard else logprob
            self.logprob = (before * self._heard + logprob * more) / tokens
        self.text += text
        self._heard, self.tokens = tokens, tokens


@dataclass(slots=True)
class Turn:
    """One question, what became of it, and how it was asked."""

    question: str
    asked: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    run: str = ""
    strands: dict[str, Strand] = field(default_factory=dict[str, Strand])
    answer: Answer | None = None
    planned: bool = False
    """It ran a plan from a file."""

    @property
    def task(self) -> str:
        """The task it was asked with, as it is written."""
        return str(self.asked.get("task", "plain"))

    @property
    def title(self) -> str:
        """The question in one line."""
        return safe(" ".join(self.question.split())) or "a plan"

    def take(self, news: News) -> None:
        """Take one piece of the run's news."""
        match news.kind:
            case "step":
                strand = self.strands.get(news.step)
                if strand is None:
                    strand = Strand(news.step, news.name, news.op, news.owner)
                    self.strands[news.step] = strand
                strand.take(news)
            case "text":
                if news.step in self.strands:
                    self.strands[news.step].hear(news.text, news.tokens, news.logprob)
            case "answer":
                self.answer = news.answer

    def news(self) -> list[News]:
        """Return news that tell how it all ended, for whoever draws it."""
        from ...core.result import Signals
        from ...runtime.client.answer import AnswerNews, StepNews

        told: list[News] = []
        for each in self.strands.values():
            signals = None
            if each.confidence is not None:
                value = each.confidence
                signals = Signals(k=0, confidence=value, tail=value, bottom=value, lowest=value, entropy=0.0)
            told.append(
                StepNews(
                    at=each.moves[-1][0] if each.moves else 0.0,
                    step=each.step,
                    name=each.name,
                    owner=each.owner,
                    op=each.op,  # pyright: ignore[reportArgumentType]: it was read from one
                    label=each.label,
                    state=each.state,
                    reason=each.reason,
                    tokens=each.tokens,
                    value=each.value if each.value is not None else each.text or None,
                    prompt=each.prompt,
                    cached=each.cached,
                    logprob=each.logprob,
                    signals=signals,
                )
            )
        if self.answer is not None:
            told.append(AnswerNews(at=self.answer.seconds, answer=self.answer))
        return told

    def find(self, pattern: str) -> list[Strand]:
        """Return the steps that are meant by a name, an id with or without its run, the end of one, or a pattern with
        `*` and `?`."""
        if pattern in self.strands:
            return [self.strands[pattern]]
        strands = list(self.strands.values())
        for same in (
            lambda each: each.path == pattern,
            lambda each: each.name == pattern,
            lambda each: each.path.endswith("/" + pattern),
            lambda each: fnmatch.fnmatchcase(each.name, pattern) or fnmatch.fnmatchcase(each.path, pattern),
        ):
            found = [each for each in strands if same(each)]
            if found:
                return found
        return []


def dump(turns: Iterable[Turn], asked: Asked) -> str:
    """Return a conversation as JSON."""
    return json.dumps(
        {
            "plait-conversation": FORMAT,
            "settings": asked.written(),
            "turns": [
                {
                    "question": turn.question,
                    "asked": turn.asked,
                    "run": turn.run,
                    "planned": turn.planned,
                    "answer": None if turn.answer is None else turn.answer.model_dump(mode="json"),
                    "steps": [
                        {key: value for key, value in asdict(each).items() if key[0] != "_"}
                        for each in turn.strands.values()
                    ],
                }
                for turn in turns
            ],
        },
        indent=1,
    )


def load(path: Path) -> tuple[list[Turn], Asked]:
    """Read what `dump` wrote. Raises `UsageError` for a file that cannot be read or is none of its kind."""
    from pydantic import ValidationError

    from ...core.errors import PluginError, UsageError
    from ...runtime.client.answer import Answer

    remedy = "give a file that /save wrote with a name ending in .json"
    try:
        written = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): {remedy}") from None
    if not isinstance(written, dict) or written.get("plait-conversation") != FORMAT:
        raise UsageError(f"{path} holds no conversation of this version of plait: {remedy}")
    try:
        turns: list[Turn] = []
        for each in written["turns"]:
            strands = [
                Strand(**{**step, "moves": [(move[0], move[1], move[2]) for move in step["moves"]]})
                for step in each["steps"]
            ]
            answer = None if each["answer"] is None else Answer.model_validate(each["answer"])
            by_id = {strand.step: strand for strand in strands}
            turns.append(Turn(each["question"], each["asked"], each["run"], by_id, answer, each["planned"]))
        return turns, Asked.read(written["settings"])
    except (ValidationError, PluginError, KeyError, IndexError, TypeError, AttributeError) as error:
        said = str(error).partition("\n")[0]
        raise UsageError(f"{path} is damaged ({type(error).__name__}: {said}): {remedy}") from None


def as_markdown(turns: Iterable[Turn], model: str, worded: Iterable[str]) -> str:
    """Return a conversation for people; `worded` holds the answers in words, one for each turn."""
    lines = ["# Conversation with plait", "", f"Model: `{safe(model)}`", ""]
    for number, (turn, words) in enumerate(zip(turns, worded, strict=True), 1):
        lines += [f"## {number}. {turn.title}", ""]
        if "\n" in turn.question.strip():
            lines += [*_fenced(turn.question), ""]
        how = ", ".join(f"{key} `{safe(str(value))}`" for key, value in turn.asked.items() if value not in ([], {}))
        if how:
            lines += [f"Asked with {how}.", ""]
        lines += [*_fenced(words), ""]
        if turn.answer is not None:
            usage = turn.answer.usage
            lines += [
                f"{turn.answer.status.capitalize()} in {turn.answer.seconds:.2f} s, {usage.completion} tokens, "
                f"{usage.cached} of {usage.prompt} prompt tokens cached, {len(turn.strands)} steps"
                + (f" (run `{turn.run}`)." if turn.run else "."),
                "",
            ]
            if turn.answer.why:
                lines += [f"Why: {safe(turn.answer.why)}", ""]
    return "\n".join(lines)


def _fenced(text: str) -> list[str]:
    text = safe(text)
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence, text.rstrip("\n"), fence]

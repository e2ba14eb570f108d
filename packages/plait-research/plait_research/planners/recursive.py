"""Planner `recursive`: the request is a variable of a Python session; the model writes code that reads it and asks
sub-calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import chain, islice
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity, TokenCount
from plait.core.errors import PlannerError
from plait.core.flow import Answerable, Context, Flow, StepFailed, Trajectory
from plait.core.programs import harness, read_outputs
from plait.core.vocabulary import Depth, MaxBranches, ObservationChars, Rounds, Width
from plait.planners._shared.steps import strip_reasoning

from ._programs import RUN_PYTHON

__all__ = ["Recursive"]

MAX_PROMPT_CHARS = 500_000
"""Maximum number of characters of a sub-call's prompt, the authors' figure."""
_FENCE = re.compile(r"```repl[ \t]*\n(.*?)\n?```", re.DOTALL)
_FINAL_BEGIN = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
_FINAL_END = re.compile(r"\)[ \t]*$", re.MULTILINE)
_FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\([\"' ]*(\w+)[\"' ]*\)", re.MULTILINE)
_Queries = TypeAdapter(list[tuple[Literal["llm", "rlm"], list[str | tuple[int, int]]]])
"""Kinds of queries and their prompts: texts, and ranges of the context."""

# A query without a known answer ends the run of the code; the code then runs again, with the answer. A prompt is
# printed as ranges of the context, because a sandbox keeps only some KiB of output.
_SESSION = """
import hashlib, io, random, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from os.path import commonprefix

def _plait_turn(blocks, first, known, width, left, longest, shown):
    context, asked, out = sys.stdin.buffer.read().decode(), [], io.StringIO()
    places = {context[at:at + 64]: at for at in reversed(range(0, len(context) - 63, 64))}

    def pieces(prompt):
        found, begin, at = [], 0, 0
        while at <= len(prompt) - 64:
            start, size = places.get(prompt[at:at + 64]), 1
            if start is not None:
                size = len(commonprefix([prompt[at:], context[start:start + len(prompt)]]))
                found += [prompt[begin:at], [start, start + size]]
                begin = at + size
            at += size
        return [*found, prompt[begin:]]

    def query(kind, prompts):
        prompts = list(map(str, prompts))
        keys = [hashlib.sha256((kind + text).encode()).hexdigest() for text in prompts]
        new = {key: text for key, text in zip(keys, prompts) if key not in known}
        if len(prompts) > width:
            raise ValueError(f"A batch has at most {width} prompts, got {len(prompts)}. Use several batches.")
        for text in prompts:
            if not 0 < len(text) <= longest:
                raise ValueError(f"A prompt has 1 to {longest} characters, got {len(text)}.")
        if len(new) > left - len(asked):
            raise ValueError(f"Only {left - len(asked)} sub-calls are left, got {len(new)} prompts.")
        if new:
            asked.extend([kind, pieces(text)] for text in new.values())
            raise SystemExit  # which code seldom catches
        return [known[key] for key in keys]

    def final(value):
        space["answer"] = {"content": value, "ready": True}

    space = {"__name__": "__main__", "context": context, "answer": {"content": "", "ready": False}, "FINAL": final}
    for kind in ("llm", "rlm"):
        space[kind + "_query"] = lambda prompt, kind=kind: query(kind, [prompt])[0]
        space[kind + "_query_batched"] = lambda prompts, kind=kind: query(kind, prompts)
    space["FINAL_VAR"] = lambda name: final(space[name])
    random.seed(0)
    for number, block in enumerate(blocks):
        if number == first:
            out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            try:
                exec(compile(block, f"<block {number + 1}>", "exec"), space)
            except BaseException:
                out.write(traceback.format_exc(limit=-1))
        if asked:  # also if the code has caught the exception
            return {"asked": asked}
        answer = space.get("answer")
        if isinstance(answer, dict) and answer.get("ready"):
            return {"output": "", "answer": str(answer.get("content"))}
    text = out.getvalue()
    if len(text) > shown:
        text = f"{text[:shown // 2]}\\n[{len(text) - shown} characters left out]\\n{text[-(shown // 2):]}"
    return {"output": text, "answer": None}
"""
_OPENING = """\
You answer a request that may be much longer than your own context. Its whole text is the string `context` of a Python \
session. You see only its ends.
In each turn write code in a block, and you will see what it prints, up to {observation_chars} characters:
```repl
print(len(context), context[:500])
```
Variables stay from turn to turn. The code runs again from its start after each query, so let it do the same each time.
- `llm_query(prompt)` returns a language model's answer. It sees only the prompt, of at most 500,000 characters.
- `llm_query_batched(prompts)` returns the answers to up to {width} prompts, which run in parallel.
- `rlm_query(prompt)` and `rlm_query_batched(prompts)` return answers of models that have the prompt as the `context` \
of a session like this one, while the depth allows it.
All queries together have at most {max_branches} prompts. Look at the text first, search it with code where that is \
enough, and ask about long pieces of it where it must be understood. You end with one line outside of code: \
FINAL(your answer), or FINAL_VAR(name) for the value of a variable.
The request has {size} characters. It begins:
{head}
{tail}"""
_LIMITS = ("width", "max_branches", "observation_chars")
_NO_CODE = "There was no block ```repl and no FINAL(answer) in your turn. Write one of them."
_LAST = "\nNo turns are left. Write only your answer, as FINAL(your answer)."


class Recursive(Flow):
    """Recursive language models (Zhang, Kraska, Khattab, arXiv 2512.24601), for requests longer than a context.

    The request is the variable `context` in a sandbox. The model sees its size and ends. Each turn is a model call,
    `think-1` …, whose blocks of code run by the tool `run_python`; prompts of `llm_query` and `rlm_query` are steps
    that run in parallel. A turn with `FINAL` ends the run. At the last of `depth` levels `rlm_query` is `llm_query`.

    Code that asks more than `width` prompts at once or `max_branches` at all levels gets an exception, which the model
    sees. Code that exceeds a limit of the sandbox is dropped and reported to the model. After `rounds` turns without
    `FINAL` the model must answer; `why` reports it. A failed sub-call is the text `Error: …`; a sandbox that does not
    work fails the run.

    Differs from the original: the sandbox keeps no process. A query whose answer is unknown ends the program, which
    runs again from its first block once the answer is there, so that the run can be resumed anywhere. Code that is not
    deterministic then asks again. Sub-calls have the model of `part`; there is no argument `model`. Defaults as in the
    original: depth 1, 30 turns. Needs the tool `run_python`: `tools=Sandbox().tools()`.
    """

    fidelity = Fidelity("variant", "code runs again after each query; answers are kept by prompt", paper="2512.24601")
    answer_calls: ClassVar[tuple[str, ...]] = ("turn",)

    turn: Annotated[CallConfig, Uses("size", "head", "tail", *_LIMITS)] = Field(
        default=CallConfig(max_tokens=2048, temperature=0.0),
        description="A turn. Its template is the first message. `{size}`, `{head}` and `{tail}` are the request's.",
    )
    part: Annotated[CallConfig, Uses("piece")] = Field(
        default=CallConfig(max_tokens=1024, temperature=0.0),
        description="A sub-call. Its template has `{piece}`, the prompt.",
    )
    depth: Depth = Field(default=1, ge=1)
    width: Width = 32
    max_branches: MaxBranches = 128
    rounds: Rounds = 30
    observation_chars: ObservationChars = 8000
    preview_chars: Annotated[int, TokenCount()] = Field(
        default=2000, ge=1, description="Number of characters at each end of the request that the model sees."
    )

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Answer the request, which is the whole conversation if it has several messages."""
        if RUN_PYTHON not in {spec.name for spec in ctx.brief.tools}:
            raise PlannerError(f"recursive runs code with the tool {RUN_PYTHON!r}. Give tools=Sandbox().tools().")
        talk = [(message.role, message.text) for message in ctx.brief.request.messages]
        if talk:
            talk += [] if ctx.brief.request.asked else [("user", question)]
            question = "\n\n".join(f"{role}: {text}" for role, text in talk)
        return ctx.answer(*await _Session(self, ctx, question, self.depth, [self.max_branches]).solve())


class _Session:
    """A text and the code about it. `left`: the number of sub-calls that are left, in a list that all levels share."""

    def __init__(self, options: Recursive, ctx: Context, context: str, depth: int, left: list[int]) -> None:
        self.options, self.ctx, self.context, self.depth, self.left = options, ctx, context, depth, left
        self.stored = ctx.answer(context, label="the request")  # once in the journal; each program refers to it
        self.blocks: list[str] = []
        self.known: dict[str, JsonValue] = {}
        """Answers, by hash of kind and prompt."""

    async def solve(self) -> tuple[str, str]:
        """Return the answer, and a note on where it comes from."""
        line = await self._open()
        for number in range(1, self.options.rounds + 1):
            text = strip_reasoning(line.text)
            blocks, rest = _FENCE.findall(text), _FENCE.sub("", text)
            final, variable = _read_final(rest), _FINAL_VAR.search(rest)
            blocks += [f"FINAL_VAR({variable[1]!r})"] if variable else []
            output, answer = await self._run(blocks) if blocks else (_NO_CODE, None)
            answer = final if answer is None else answer
            if answer is not None:
                return answer, f"{number} turns, {len(self.known)} sub-calls"
            output += _LAST if number == self.options.rounds else ""
            line = await line.think(output, self.options.turn, chat=True, label="turn")
        text = strip_reasoning(line.text).strip()
        if not text:
            raise PlannerError(f"recursive has no answer after {self.options.rounds} turns. Raise `rounds`.")
        final = _read_final(text)
        return text if final is None else final, f"no FINAL in {self.options.rounds} turns; asked to answer then"

    async def _open(self) -> Trajectory:
        """Make the first turn."""
        options, ends = self.options, self.options.preview_chars
        tail = self.context[ends:][-ends:]
        pieces = options.turn.parts(
            _OPENING,
            **{name: str(getattr(options, name)) for name in _LIMITS},
            size=str(len(self.context)),
            head=self.context[:ends],
            tail=f"…\nIt ends:\n{tail}" if tail else "",
        )
        return await self.ctx.think(pieces, options.turn, chat=True, messages=(), label="turn")

    async def _run(self, blocks: Sequence[str]) -> tuple[str, str | None]:
        """Run code after the earlier code until all its queries have answers; return its output, and the answer if it
        gave one. Each repetition uses up at least one sub-call."""
        options, program = self.options, [*self.blocks, *blocks]
        while True:
            key = f"{self.ctx.random.random():.17f}"
            limits = (options.width, self.left[0], MAX_PROMPT_CHARS, options.observation_chars or 1 << 30)
            code = harness(_SESSION, "_plait_turn", [[[*program], len(self.blocks), self.known, *limits]], key)
            result = await self.ctx.call(RUN_PYTHON, code=code, stdin=self.stored)
            outcome = result if isinstance(result, dict) else {}
            if outcome.get("status") == "broken":
                raise PlannerError(f"the sandbox does not work: {outcome.get('stderr')}")
            match read_outputs(outcome, 1, key)[0]:
                case ("value", {"output": str(output), "answer": str() | None as answer}):
                    self.blocks = program
                    return f"The code printed:\n{output or '(nothing)'}", answer
                case ("value", {"asked": asked}) if prompts := self._read_queries(asked):
                    self.left[0] -= len(prompts)
                    answers = await self.ctx.gather(*(self._answer(kind, prompt) for kind, prompt in prompts))
                    keys = (hashlib.sha256((kind + prompt).encode()).hexdigest() for kind, prompt in prompts)
                    self.known |= zip(keys, answers, strict=True)
                case _:
                    status = "too much output" if outcome.get("cut") else outcome.get("status")
                    return f"The code was stopped and is forgotten ({status}): {outcome.get('stderr', '')!s:.500}", None

    def _read_queries(self, asked: JsonValue) -> list[tuple[str, str]]:
        """Return kinds and prompts of queries, or nothing if code has changed what it printed."""
        try:
            queries = _Queries.validate_python(asked)[: self.left[0]]
        except ValidationError:
            return []
        prompts: list[tuple[str, str]] = []
        for kind, parts in queries:
            texts = (part if isinstance(part, str) else self.context[slice(*part)] for part in parts)
            prompts.append((kind, "".join(islice(chain.from_iterable(texts), MAX_PROMPT_CHARS))))
        return prompts

    async def _answer(self, kind: str, prompt: str) -> str:
        """Return the answer to a sub-call, or the text of its failure."""
        config = self.options.part
        try:
            if kind == "rlm" and self.depth > 1:
                return (await _Session(self.options, self.ctx, prompt, self.depth - 1, self.left).solve())[0]
            line = await self.ctx.think(config.parts("{piece}", piece=prompt), config, messages=(), label="sub-call")
            return strip_reasoning(line.text)
        except (StepFailed, PlannerError) as error:
            return f"Error: {error}"


def _read_final(text: str) -> str | None:
    """Return the content of the first `FINAL(`, up to the last parenthesis at the end of a line."""
    begin = _FINAL_BEGIN.search(text)
    ends = [] if begin is None else [end.start() for end in _FINAL_END.finditer(text, begin.end())]
    return text[begin.end() : ends[-1]].strip() if begin is not None and ends else None

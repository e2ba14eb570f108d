"""Merges that choose nothing: `collect`, `constant`, `observations`, `scratchpad`, and `splice`, the results of spawned
threads as the text with which their parent continues; `finish` reads a model's decision, `Action: Finish(answer)` or
`Action: Replan(what is missing)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free, TokenCount
from plait.core.interfaces import Merge, Verdict
from plait.core.ops import Text
from plait.core.regex import expression
from plait.core.splice import SpliceBlock
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import strip_thoughts

__all__ = ["Collect", "Constant", "FinishMarker", "Observations", "Scratchpad", "Splice"]


class Collect(Merge):
    """Return the list of the branches' values in the join's order, with `null` for a branch without a value."""

    plans_more = False
    collects = True

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the list; `why` names the missing branches."""
        values = [branch.result.value if branch.done and branch.result else None for branch in branches]
        missing = [f"{branch.name} {branch.state}" for branch in branches if not branch.done]
        why = f"{len(branches) - len(missing)} of {len(branches)} branches"
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            why += f"; missing: {shown}"
        return Verdict(value=values, why=why)


class Constant(Merge):
    """Return the value of its option and ignore the branches. Planners use it to put a value into a plan."""

    plans_more = False

    value: Annotated[JsonValue, Free()] = Field(default=None, description="The value.")
    why: FreeText = Field(default="", description="How it came about, for people.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="Data for programs (`Answer.data`).")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the value."""
        return Verdict(value=self.value, why=self.why, data=self.data)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return `True`: no branch can change the value."""
        return True


class Observations(Merge):
    """Return {"text": …, "results": {step: {"value": …} or {"error": …}}} in the order of the branches, not of their
    ends. A failed call is an observation; use this merge in a join that tolerates failures."""

    plans_more = False

    written: FreeText = Field(default="", description="What the model wrote.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="Data for programs (`Answer.data`).")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the record."""
        results: dict[str, JsonValue] = {branch.name: _result(branch) for branch in branches}
        failed = sum(branch.result is None for branch in branches)
        why = f"{len(branches)} calls" + (f", {failed} of them failed" if failed else "")
        return Verdict(value={"text": self.written, "results": results}, why=why, data=self.data)


def _result(branch: Branch) -> JsonValue:
    if branch.result is not None:
        return {"value": branch.result.value}
    problem = branch.failure.message if branch.failure is not None else f"the call is {branch.state.value}"
    return {"error": problem}


class ScratchpadAction(Frozen):
    """One action."""

    text: str
    """The planned action: `2. search("x")`. Empty: the branch's text stands as it is, as a later scratchpad's."""
    branch: str | None = None
    """Name of the branch that ran the action. Without a branch the action was not run; `error` has the reason."""
    thought: str = ""
    """The thought before the action."""
    error: str = ""
    """The reason why the action was not run."""


class Scratchpad(Merge):
    """Writes one block for each action, in plan order: `Thought: …` if there is one, the action, `Observation: …`.

    A tool's result is text and is never parsed as an action or a reference. The observation of a failed task is its
    error. The observation of a task that was not run is the reason. Use this merge in a join that tolerates failures.
    """

    actions: Annotated[tuple[ScratchpadAction, ...], Free()] = Field(
        default=(), description="The actions. Empty: one for each branch, in the join's order, under its name."
    )
    earlier: FreeText | None = Field(
        default=None, description="Branch whose text comes first, as it is: an earlier scratchpad."
    )
    observation_chars: Annotated[int | None, TokenCount()] = Field(
        default=None,
        ge=1,
        description="Maximum number of characters of one result in a prompt: an observation; the rest is left out.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the text; `why` counts the outcomes of the actions."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.actions or tuple(
            ScratchpadAction(text=branch.name, branch=branch.name) for branch in branches if branch.name != self.earlier
        )
        earlier = by_name.get(self.earlier) if self.earlier is not None else None
        blocks = [earlier.result.text] if earlier is not None and earlier.result is not None else []
        done = 0
        for entry in entries:
            branch = by_name.get(entry.branch) if entry.branch is not None else None
            done += branch is not None and branch.result is not None
            thought = f"Thought: {entry.thought}\n" if entry.thought else ""
            observation = self._observation(entry, branch)
            later = branch.result.text if branch is not None and branch.result is not None else ""
            blocks.append(f"{thought}{entry.text}\nObservation: {observation}\n" if entry.text else later)
        why = f"{done} of {len(entries)} actions gave a result"
        return Verdict(value="".join(blocks), why=why)

    def _observation(self, entry: ScratchpadAction, branch: Branch | None) -> str:
        if branch is None:
            return f"not run: {entry.error or 'it was no part of the plan'}"
        if branch.result is not None:
            text = branch.result.text
            if self.observation_chars is not None and len(text) > self.observation_chars:
                return f"{text[: self.observation_chars]}… ({len(text) - self.observation_chars} more characters)"
            return text
        if branch.failure is None:
            return f"none: the task was {'stopped' if branch.state.ended else 'not done in time'}"
        if branch.failure.kind == "DependencyFailed":
            return f"not run, because a task that it needs failed: {branch.failure.message}"
        return f"error: {branch.failure.message}"


_END = re.compile(r"<\s*/?END[_ ]?OF[_ ]?RESPONSE\s*>?|^[ \t]*###|^Question[ \t]*:", re.IGNORECASE | re.MULTILINE)
_ACTION = re.compile(
    r"^[ \t]*+[-*_`]*+[ \t]*+Action[*_`]*+[ \t]*+:[*_`]*+[ \t]*+[*_`]*+(Finish|Replan)\b[*_`]*+[ \t]*+(\(?)",
    re.IGNORECASE | re.MULTILINE,
)
_THOUGHT = re.compile(r"^[ \t]*[*_]*Thought[*_]*[ \t]*:[*_]*[ \t]*(.*)", re.IGNORECASE | re.MULTILINE)
_MARK = re.compile(r"[()]")
_LINE_END = re.compile(r"[ \t*`.;]*+(?:\n|$)")


class FinishMarker(Merge):
    """Return the text in the model's `FinishMarker(…)`.

    The first action in the text of the first finished branch counts, up to its closing parenthesis. The answer may
    contain line breaks, parentheses and the word "Replan". Without an action the whole text is the answer. The merge
    also reads a JSON object {"thought", "action": {"response"} or {"feedback"}}.

    `Replan(…)` gives {"replan": what is missing, "thought": …} if `may_replan` allows it.
    """

    plans_more = False

    may_replan: bool = Field(
        default=False,
        description="Whether the model may ask for another plan. Off: the text of such a request is the answer.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the answer, or the request for another plan."""
        branch = next((branch for branch in branches if branch.result is not None), None)
        if branch is None or branch.result is None:
            return Verdict(value=None, why="there is no text to read")
        text = strip_thoughts(branch.result.text)
        kind, response, thought = _read_object(text) or _read_text(text)
        if kind == "replan" and self.may_replan:
            return Verdict(value={"replan": response, "thought": thought}, why="asked for another plan")
        why = {
            "finish": "finished",
            "replan": "asked for another plan, but none is left",
            "none": "no action: the whole text is the answer",
        }[kind]
        return Verdict(value=response, why=why, winner=branch.name)


def _read_text(text: str) -> tuple[str, str, str]:
    """Return the action (`finish`, `replan`, `none`), its text, and the thought before it."""
    end = _END.search(text)
    text = text[: end.start()] if end else text
    action = _ACTION.search(text)
    if action is None:
        return "none", text.strip(), ""
    thought = _THOUGHT.search(text, 0, action.start())
    rest = text[action.end() :]
    # Only an action with a parenthesis has an end; without one, all following text belongs to the action.
    if action[2]:
        rest = _up_to_closing(rest)
    return action[1].lower(), _strip_quotes(rest.strip()), thought[1].strip() if thought else ""


def _up_to_closing(text: str) -> str:
    """Return the text up to the balanced closing parenthesis, or else up to a parenthesis at a line's end."""
    depth = 1
    for mark in _MARK.finditer(text):
        depth += 1 if mark[0] == "(" else -1
        if depth <= 0 and _LINE_END.match(text, mark.end()):
            return text[: mark.start()]
    text = text.rstrip()
    return text.removesuffix(")") if depth <= 0 else text


def _strip_quotes(text: str) -> str:
    """Return a text without the quotes that enclose it."""
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]:
        return text[1:-1]
    return text


def _read_object(text: str) -> tuple[str, str, str] | None:
    """Return the action of a JSON object, or `None` if the text is not one."""
    # Models that were trained on JSON actions write JSON, whatever form the prompt shows.
    start = text.strip().removeprefix("```json").removesuffix("```").strip()
    if not start.startswith("{"):
        return None
    try:
        read: object = json.loads(start)
    except (ValueError, RecursionError):
        return None
    match read:
        case {"action": {"response": str() as response}, **rest}:
            kind = "finish"
        case {"action": {"feedback": str() as response}, **rest}:
            kind = "replan"
        case _:
            return None
    thought = rest.get("thought")
    return kind, response, thought if isinstance(thought, str) else ""


# Merge `splice`: the results of spawned threads as the text with which their parent continues.
#
# A planner takes the block from its dialect's table.


_FIELD = re.compile(r"\{(item|answer|text|number|index)\}")
_WORD = re.compile(r"\s*\S+")
_EOS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<｜end▁of▁sentence｜>", "<eos>")

Piece = str | dict[str, JsonValue]
"""Text, or a thread's output with its token ids: `{"ids": […], "text": …}`."""


class SplicePlace(Frozen):
    """One entry of the block."""

    item: str = ""
    """The parent's name for this thread's item."""
    branch: str | None = None
    """The thread's branch. `None`: no thread ran, and the entry is written like that of an unsuccessful thread."""


class Splice(Merge):
    """Writes the `block` of the threads' results. The value is this text, or with `block.carry` a list of pieces."""

    block: Annotated[SpliceBlock, Free()] = Field(default=SpliceBlock(), description="The fixed text, and the goal.")
    places: Annotated[tuple[SplicePlace, ...], Free()] = Field(
        default=(), description="The places in order. Empty: one for each branch, in the join's order."
    )
    pick: bool = Field(
        default=False,
        description="The value is the first successful entry alone, as the answer. Without any it is empty, or, with "
        "`otherwise`, the text of the first thread that is done.",
    )
    otherwise: bool = Field(default=False, description="See `pick`.")
    most_tokens: Annotated[int | None, TokenCount()] = Field(
        default=None,
        description="Token limit of all branches together: if the value is a list of pieces, the longest ones lose "
        "their ends. Without token ids a word counts as a token.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the block; `winner` is the first thread that reached the goal."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.places or tuple(SplicePlace(branch=branch.name) for branch in branches)
        written: list[tuple[list[Piece], str | None]] = []
        hits: list[str] = []
        wrong = 0
        most = self._share(branches)
        for number, entry in enumerate(entries, 1):
            branch = by_name.get(entry.branch) if entry.branch is not None else None
            pieces, claim, refuted = self._successful_entry(entry, number, branch, task, most)
            wrong += refuted
            if pieces is not None and branch is not None:
                hits.append(branch.name)
            fields = {"item": entry.item, "number": str(number), "index": str(number - 1)}
            written.append(([_fill(self.block.none, fields)], None) if pieces is None else (pieces, claim))
        why = self._explain(branches, len(entries), hits, wrong)
        if self.pick:
            value = next((claim for _, claim in written if claim is not None), "")
            if not value and self.otherwise:
                value = next((branch.result.text for branch in branches if branch.done and branch.result), "")
            return Verdict(value=value, why=why, winner=hits[0] if hits else None)
        parts: list[Piece] = [self.block.head]
        for number, (pieces, _) in enumerate(written):
            parts += [self.block.separator, *pieces] if number else pieces
        parts = _merge_pieces([*parts, self.block.tail])
        winner = hits[0] if hits and self.block.goal is not None else None
        value: JsonValue = [*parts] if self.block.carry else "".join(map(_text, parts))
        return Verdict(value=value, why=why, winner=winner)

    def _explain(self, branches: Sequence[Branch], entries: int, hits: Sequence[str], wrong: int) -> str:
        """Return the number of threads that reached the goal, and the outcomes of the other threads."""
        done = sum(branch.done for branch in branches)
        why = f"{len(hits)} of {entries} threads reached the goal"
        why += f" ({', '.join(hits)})" if hits else ""
        why += f"; {wrong} claimed it wrongly" if wrong else ""
        why += f"; {len(branches) - done} did not end in a value" if done < len(branches) else ""
        return why + (f"; {entries - len(branches)} were not run" if entries > len(branches) else "")

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether a thread reached the goal: the parent needs one successful thread, not all."""
        if outstanding <= 0:
            return True
        if self.block.goal is None:
            return False
        items = {entry.branch: entry for entry in self.places}
        return any(
            self._successful_entry(items.get(branch.name, SplicePlace(branch=branch.name)), number, branch, task)[0]
            is not None
            for number, branch in enumerate(branches, 1)
        )

    def _successful_entry(
        self, entry: SplicePlace, number: int, branch: Branch | None, task: Task, most: int | None = None
    ) -> tuple[list[Piece] | None, str | None, bool]:
        """Return a successful thread's entry and claim, or `None` for both, and whether the claim was refuted."""
        # The partial output of a thread that was cut off counts only if the parent carries its token ids.
        if branch is None or not (branch.done or (self.block.carry and branch.written)):
            return None, None, False
        fields = {"item": entry.item, "answer": "", "number": str(number), "index": str(number - 1)}
        if self.block.goal is None:
            pieces = self._truncate(branch, most)
            if not self.block.carry:
                text = _fill(self.block.hit, {**fields, "text": "".join(map(_text, pieces))})
                return [text], text, False
            before, _, after = self.block.hit.partition("{text}")
            return [_fill(before, fields), *pieces, _fill(after, fields)], "", False
        text = "".join(map(_text, self._truncate(branch)))
        goal = expression(self.block.goal).search(text)
        if goal is None:
            return None, None, False
        fields["answer"] = (goal.named.get("answer") or "").strip()
        written = _fill(self.block.hit, {**fields, "text": text})
        claim = self.block.join_claim(fields["answer"]) if self.block.claim_item else written
        if self.block.check:
            # A claim that the task cannot read is not an answer; a claim that it cannot judge (`None`) is accepted.
            answer = task.extract(claim)
            if answer is None or task.verify(answer) is False:
                return None, None, True
        return [written], claim, False

    def _truncate(self, branch: Branch, most: int | None = None) -> list[Piece]:
        """Return a thread's output, cut to `max_branches` tokens and closed."""
        pieces = self._pieces(branch)
        if most is not None and sum(map(_length, pieces)) > most:
            pieces = _truncate_pieces(pieces, most)
        if not self.block.end:
            return pieces
        pieces = _strip_eos(pieces, self.block.end)
        return pieces if "".join(map(_text, pieces)).endswith(self.block.end) else [*pieces, self.block.close]

    def _pieces(self, branch: Branch) -> list[Piece]:
        if not self.block.carry:
            return [" ".join(branch.text.split()) if self.block.words else branch.text]
        if branch.written:
            pieces = branch.written
            return [piece.text if isinstance(piece, Text) else _piece(piece.ids, piece.text) for piece in pieces]
        ids = branch.result.token_ids if branch.result is not None else ()
        return [_piece(ids, branch.text)] if ids else [branch.text]

    def _share(self, branches: Sequence[Branch]) -> int | None:
        """Return the token limit of each of the longest threads: an equal share of the tokens that the shorter threads
        leave of `most_tokens`. `None`: no limit."""
        if self.most_tokens is None or not self.block.carry:
            return None
        lengths = sorted(
            sum(map(_length, self._pieces(branch))) for branch in branches if branch.done or branch.written
        )
        left = self.most_tokens
        for number, length in enumerate(lengths):
            if length * (len(lengths) - number) > left:
                return left // (len(lengths) - number)
            left -= length
        return None


def _piece(ids: tuple[int, ...], text: str) -> Piece:
    return {"ids": list(ids), "text": text}


def _text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else str(piece.get("text", ""))


def _length(piece: Piece) -> int:
    """Return the number of a piece's tokens, or of its words if it has no ids."""
    ids = piece.get("ids") if isinstance(piece, dict) else None
    return len(ids) if isinstance(ids, list) else len(_text(piece).split())


def _truncate_pieces(pieces: list[Piece], most: int) -> list[Piece]:
    """Return the first `max_branches` tokens of pieces."""
    out: list[Piece] = []
    for piece in pieces:
        length = _length(piece)
        if length <= most:
            out.append(piece)
        elif most > 0:
            ids = piece.get("ids") if isinstance(piece, dict) else None
            if isinstance(ids, list):  # The text's cut is an estimate: people read it, the parent reads ids.
                out.append({"ids": ids[:most], "text": _text(piece)[: len(_text(piece)) * most // length] + "…"})
            else:
                out.append("".join(_WORD.findall(_text(piece))[:most]))
        most = max(0, most - length)
    return out


def _strip_eos(pieces: list[Piece], end: str) -> list[Piece]:
    """Remove an end-of-text token: inside the parent's context it would end the parent's text."""
    if not pieces:
        return pieces
    last = pieces[-1]
    text = _text(last)
    mark = next((mark_ for mark_ in _EOS if mark_ != end and text.endswith(mark_)), None)
    if mark is None:
        return pieces
    bare = text.removesuffix(mark)
    if isinstance(last, str):
        return [*pieces[:-1], bare]
    ids = last.get("ids")
    return [*pieces[:-1], {"ids": ids[:-1] if isinstance(ids, list) else [], "text": bare}]


def _merge_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Join neighbouring texts, since each text is tokenised separately, and drop empty pieces."""
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        elif piece if isinstance(piece, str) else piece.get("ids"):
            out.append(piece)
    return out


def _fill(template: str, fields: dict[str, str]) -> str:
    """Fill the fields of a template; other braces stay unchanged."""
    return _FIELD.sub(lambda field: fields.get(field[1], ""), template)

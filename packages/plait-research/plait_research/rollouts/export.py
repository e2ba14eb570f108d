"""`plait runs export`: export successful runs as data for supervised training."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from plait.apps.common.files import written
from plait.core.errors import ConfigError, PlaitError
from plait.core.events import Finish
from plait.core.ops import ModelCall, Text
from plait.core.task import Task
from plait.core.values import as_text
from plait.runtime.journal.directory import RunEntry
from plait.runtime.plugins.loader import Plugins
from plait.runtime.runlog import RunRecord

from .adapters import Tokenizer, retokenised
from .advantages import grpo_advantages
from .record import BadRecord, Record, records
from .store import Store, read_rollouts, stored_runs

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1024
"""Rows of a record batch, and the maximum number of rows in memory."""


def demand_arrow() -> None:
    """Raise `ConfigError` where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("Arrow needs pyarrow: pip install 'plait[batch]', or write .jsonl")


def schema() -> pa.Schema:
    """Return the columns of a record; `meta` is JSON."""
    import pyarrow as pa

    segment = pa.struct(
        [
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("policy", pa.int64()),
            ("step", pa.string()),
            ("role", pa.string()),
            ("temperature", pa.float64()),
            ("top_p", pa.float64()),
            ("form", pa.string()),
            ("others", pa.list_(pa.string())),
            ("advantage", pa.float64()),
        ]
    )
    return pa.schema(
        [
            ("rollout", pa.string()),
            ("group", pa.string()),
            ("branch", pa.int32()),
            ("index", pa.int32()),
            ("of", pa.int32()),
            ("parent", pa.int32()),
            ("fork", pa.int32()),
            ("tokens", pa.list_(pa.int32())),
            ("mask", pa.list_(pa.int8())),
            ("logprobs", pa.list_(pa.float32())),
            ("segments", pa.list_(segment)),
            ("reward", pa.float64()),
            ("own", pa.float64()),
            ("advantage", pa.float64()),
            ("meta", pa.string()),
        ]
    )


def write_arrow(log: Path, out: Path) -> int:
    """Write the records of a file of rollouts as an Arrow IPC file, each with GRPO's advantage of its rollout, and
    return the number of records."""
    demand_arrow()
    import pyarrow as pa

    count = 0
    with written(out) as file, pa.ipc.new_file(file, schema()) as writer:
        rows = _rows(log)
        while held := list(islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(held, schema=schema()))
            count += len(held)
    return count


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    # The file is read twice: its groups are not contiguous, and only the rewards fit into memory.
    known = grpo_advantages(rollout[0] for rollout in read_rollouts(log))
    for rollout in read_rollouts(log):
        for record in rollout:
            yield {**record.model_dump(), "advantage": known.get(record.rollout), "meta": json.dumps(record.meta)}


@dataclass(slots=True)
class ExportedRun:
    """A run that ended with or without an answer."""

    run: RunRecord
    task: Task
    answer: Any
    """`None` if the run has no answer; `export` yields such runs only on request."""
    right: bool | None
    """The task's verdict; `None` if the task cannot grade the answer."""
    tokens: int
    """Number of generated tokens of the whole run."""
    critical: int

    @property
    def question(self) -> str:
        """Key of the question: task and text."""
        return f"{self.run.request.task.name}\n{self.run.request.text}"


@dataclass(slots=True)
class ExclusionCounts:
    """Number of skipped runs by reason."""

    why: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, why: str, number: int = 1) -> None:
        """Count skipped runs."""
        self.why[why] = self.why.get(why, 0) + number


def export(
    entries: Iterable[RunEntry], plugins: Plugins, left: ExclusionCounts, *, unanswered: bool = False
) -> Iterator[ExportedRun]:
    """Yield the runs of journals that ended with an answer; unreadable runs are counted and skipped. `unanswered` adds
    runs that ended without an answer, as wrong, but not runs that a person cancelled."""

    def failed(error: Exception) -> None:
        left.add(f"not readable: {type(error).__name__}")

    for run in stored_runs(entries, plugins, failed):
        if (finish := run.finish) is None or finish.status == "cancelled":
            left.add("no answer")
            continue
        try:
            task = plugins.task(run.request.task, run.request.text)
            answer = _answer(finish, task)
            right = False if answer is None else task.verify(answer)
        except (PlaitError, ValueError) as error:
            failed(error)
            continue
        if answer is None and not unanswered:
            left.add("no answer")
            continue
        yield ExportedRun(run, task, answer, right, finish.usage.completion, finish.critical_path_tokens)


def _answer(finish: Finish, task: Task) -> Any:
    if finish.status != "done" or finish.result is None:
        return None
    value = finish.result.value
    return value if finish.result.extracted or not isinstance(value, str) else task.extract(value)


@dataclass(slots=True)
class TrainingRun:
    """A run to train on."""

    run: RunRecord
    group: int
    """Number of its question in the selection's order."""
    right: bool | None


class Selection:
    """Runs to train on, grouped by question, cheapest first. They are kept on disk and read one at a time. Use a
    selection in a `with` block, whose end deletes the runs."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `__exit__`)
        self._lines: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[TrainingRun]:
        for group, at in self._lines:
            self._file.seek(at)
            run, right = pickle.load(self._file)  # noqa: S301  (only this process can write to it)
            yield TrainingRun(run, group, right)

    def put(self, run: ExportedRun) -> int:
        """Write a run to the file, and return its offset."""
        at = self._file.seek(0, os.SEEK_END)
        pickle.dump((run.run, run.right), self._file, pickle.HIGHEST_PROTOCOL)
        return at

    def choose(self, group: int, at: int) -> None:
        """Select the run at an offset."""
        self._lines.append((group, at))


def select(
    runs: Iterable[ExportedRun],
    left: ExclusionCounts,
    *,
    verified: bool = False,
    most: int | None = None,
    distinct: bool = False,
    by: Literal["critical", "total"] = "total",
) -> Selection:
    """Return runs to train on. Only the selection keys of each run stay in memory.

    Args: runs: all runs. left: counts the skipped runs. verified: only answers that the task finds right. most: maximum
        number of runs per question; the cheapest are taken. distinct: only the cheapest of a question's equal answers
        (`Task.key`). by: cost in generated tokens of the whole run, or of its critical path.
    """
    groups: dict[bytes, list[tuple[int, str, bytes, int]]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        chosen = stack.enter_context(Selection())
        for run in runs:
            if verified and run.right is not True:
                left.add("not verified")
                continue
            cost = run.critical if by == "critical" else run.tokens
            key = _digest(run.task.key(run.answer)) if distinct else b""
            groups[_digest(run.question)].append((cost, run.run.id, key, chosen.put(run)))
        stack.pop_all()  # All runs were read; the caller closes the selection.
    for number, group in enumerate(groups.values()):
        seen: set[bytes] = set()
        kept = 0
        for _, _, key, at in sorted(group):
            if distinct and key in seen:
                left.add("the same answer, dearer")
            elif most is not None and kept >= most:
                left.add("dearer than others of its question")
            else:
                seen.add(key)
                kept += 1
                chosen.choose(number, at)
    return chosen


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def write_records(runs: Selection, out: Path, left: ExclusionCounts, tokenizer: Tokenizer | None = None) -> int:
    """Write runs as token-exact records for `Reader(supervised=True)`, and return the number of sequences. Runs without
    token ids, and runs with a record that does not re-tokenise to itself, are left out."""
    check = None if tokenizer is None else retokenised(tokenizer)
    count = 0
    branches: dict[int, int] = defaultdict(int)
    with Store(out, {"export": len(runs)}) as store:
        for run in runs:
            reward = None if run.right is None else float(run.right)
            try:
                made: list[Record] = records(run.run, str(run.group), branches[run.group], reward)
            except BadRecord:
                left.add("no token ids")
                continue
            fault = next((fault for fault in map(check, made) if fault), "") if check is not None else ""
            if fault or not made:
                left.add(fault or "no model call")
                continue
            branches[run.group] += 1
            store.add(made)
            count += len(made)
    return count


def write_texts(runs: Iterable[TrainingRun], out: Path, left: ExclusionCounts, redact: bool = False) -> int:
    """Write each model call of the runs as `{"prompt", "completion"}`, or `{"messages"}` for a conversation; return how
    many. One whose prompt has token ids of another step has no text of its own, and is left out. With `redact` texts
    are replaced by their lengths: what remains says how many there are and how long."""

    def told(text: str) -> str:
        return f"[{len(text)} characters]" if redact else text

    count = 0
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for run in runs:
            for attempt in run.run.calls:
                op, result = attempt.op, attempt.result
                if not isinstance(op, ModelCall) or result is None:
                    continue
                completion = told(as_text(result.value))
                if op.messages:
                    turns = [
                        {"role": message.role, "content": told(_content(message.content))} for message in op.messages
                    ]
                    row: dict[str, Any] = {"messages": [*turns, {"role": "assistant", "content": completion}]}
                elif all(isinstance(part, Text) for part in op.parts):
                    prompt = "".join(part.text for part in op.parts if isinstance(part, Text)) + op.begin
                    row = {"prompt": told(prompt), "completion": completion}
                else:
                    left.add("a call that continues token ids (use --format tokens)")
                    continue
                row |= {"run": run.run.id, "verified": run.right}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
    return count


def _content(content: object) -> str:
    """Return a message's text, or the texts of its parts."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts: Any = content
    return "".join(str(getattr(part, "text", "")) for part in parts)


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model's folder. Raises `ConfigError` without one, or without the library."""
    try:
        from tokenizers import Tokenizer as Fast
    except ImportError:
        raise ConfigError("a tokenizer is read with tokenizers: pip install 'plait[tokenizer]'") from None
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json: name the folder of the model")
    loaded: Any = Fast.from_file(str(file))
    return loaded

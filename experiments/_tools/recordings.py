"""Reads published recordings of models as samples, with a function for each source:

    python -m experiments._tools.recordings esc T0.7.jsonl --out gpt.jsonl

Each function extracts and grades answers like the source's authors.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.apps.common.options import Json
from plait.apps.common.output import opened
from plait.core.errors import ConfigError, UsageError
from plait.core.messages import did_you_mean, pluralise
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins
from plait_research.samples.recordings import RecordedSample, read_lines, wanted_answers, write_samples

CHARACTERS = 4
"""Average characters of English per token, used without a count: the usual rule of thumb."""


def estimated(text: str) -> int:
    """Return the estimated number of tokens of a text.

    >>> estimated("The answer is 4.")
    4
    """
    return max(1, round(len(text) / CHARACTERS)) if text else 0


MAX_MEMBER_BYTES = 32 << 20
"""Maximum size of a sample in a packed Inspect log, in bytes."""
MAX_LOG_BYTES = 1 << 30
"""Maximum unpacked size of a packed Inspect log, in bytes."""
_NOT_LETTERS = re.compile(r"[^a-z]")
_BOXED = Plugin(name="plain", options={"where": "boxed", "equal": "expression"})
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def recorded_samples(source: str, path: Path, answers: Path | None = None) -> Iterator[RecordedSample]:
    """Yield the samples of published recordings.

    Args: source: one of `SOURCES`. path: the published file or folder. answers: JSON lines of `question` and `answer`,
        for recordings that lack the right answers.

    Raises `ConfigError` for other files.
    """
    wanted = {} if answers is None else wanted_answers(answers)
    try:
        yield from SOURCES[source](path, wanted)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is not a recording of {source}: {type(error).__name__}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _object(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# -- votes -------------------------------------------------------------------------------------------------------------


def _esc(path: Path, _: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read `MODEL_result/TASK/T0.7.jsonl` of ESC (arXiv 2401.10480). The answer follows "the answer is". As in the
    authors' code, answers are compared by their letters, or as numbers if the right answer is a number."""
    for row in read_lines(path):
        want = str(row["answer"]).lower()
        numeric = _NUMBER.fullmatch(want) is not None
        for text in row["generated_answer"]:
            statement = text.lower().rpartition("the answer is")[2]
            if numeric:
                numbers = _NUMBER.findall(statement)
                answer, want = numbers[-1].replace(",", "") if numbers else None, want.replace(",", "")
            else:
                answer = _NOT_LETTERS.sub("", statement) or None
            yield RecordedSample(
                question=row["question"], model=path.parent.parent.name.removesuffix("_result"), answer=answer,
                right=answer is not None and answer == want, tokens=estimated(text), text=text,
            )  # fmt: skip


def _adaptive_consistency(path: Path, _: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read `outputs/MODEL/DATASET/outputs_seedN.jsonl` of Adaptive-Consistency (arXiv 2305.11860)."""
    for number, row in enumerate(read_lines(path)):
        for answer in row["answers"]:
            given = str(answer).strip()
            yield RecordedSample(
                question=str(row.get("question", f"{path.parent.name} {number}")), model=path.parent.parent.name,
                answer=given or None, right=_equal(given, str(row["target"]).strip()),
            )  # fmt: skip


def _equal(given: str, want: str) -> bool:
    try:
        return abs(float(given) - float(want)) < 1e-3  # the authors' tolerance
    except ValueError:
        return given == want


def _atts(path: Path, wanted: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read a folder of `problem_0000.json` of ATTS (arXiv 2509.15148): the turns of a draft and its target. They are
    graded only with `answers`; answers are compared as mathematical expressions."""
    plugins = Plugins()
    for file in sorted(path.glob("problem_*.json")):
        row = _object(file)
        text = "".join(turn.get("output", "") for turn in row["full_history"])
        task = plugins.task(_BOXED, row["question"])
        given = str(row["final_answer"] or "")
        if given.count("{") != given.count("}"):  # the authors' expression for some runs ends at the first brace
            given = task.extract(text)
        answer = task.key(given) if given not in (None, "", "invalid") else None
        want = wanted.get(row["question"].strip())
        right = None
        if want is not None:
            stated = plugins.task(Plugin(name="plain"), want).extract(want)
            right = answer is not None and answer == task.key(stated)
        yield RecordedSample(
            question=row["question"], model=path.name, answer=answer, right=right, tokens=estimated(text), text=text
        )


# -- routes ------------------------------------------------------------------------------------------------------------


def _routellm(path: Path, _: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read `gsm8k_responses.csv` or `mmlu/responses/*.csv` of RouteLLM (arXiv 2406.18665). Each model has a column of
    verdicts, and a column of responses if the file has them. A row is a question."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns = list(reader.fieldnames or ())
        models = [name for name in columns if name != "prompt" and not name.endswith("_response")]
        if "prompt" not in columns or not models:
            raise ValueError("it has no column `prompt`, or no model beside it")
        for row in reader:
            for model in models:
                text = row.get(f"{model}_response")
                yield RecordedSample(
                    question=row["prompt"], model=model, right=row[model] == "True", text=text,
                    tokens=None if text is None else estimated(text),
                )  # fmt: skip


def _intercode(path: Path, _: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read a file of `data/results` of InterCode (arXiv 2306.14898): one model's turns with their rewards. The loop
    ends at a reward of 1, so the grader influences its length."""
    for row in _object(path).values():
        history, reward = row["turn_history"], float(row["summary"]["max_reward"])
        actions = [str(action) for action in history["actions"]]
        text = "\n".join(actions)
        yield RecordedSample(
            question=row["query"], model=f"{path.parent.name}/{path.stem}",
            answer=actions[-1] if actions else None, right=reward >= 1.0, reward=reward,
            tokens=estimated(text), text=text,
        )  # fmt: skip


# -- tools and logs ----------------------------------------------------------------------------------------------------


def _toolbench(path: Path, _: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read a folder of `*_answer/N_METHOD.json` of ToolBench (arXiv 2307.16789), or one such file. The runs are not
    graded; `answer` is `None` if a run ended without one."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.json")):
        made = _object(file)["answer_generation"]
        given = made["final_answer"] if made["finish_type"] == "give_answer" else None
        yield RecordedSample(
            question=made["query"], model=file.stem.partition("_")[2], answer=given or None, text=given or None,
            tokens=int(made["total_tokens"]), counted=True,
        )  # fmt: skip


def _inspect(path: Path, _: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Read an Inspect log, `.eval` or `.json`. The first scorer's value is the verdict: `C` or 1 is right."""
    if path.suffix == ".eval":
        with zipfile.ZipFile(path) as file:
            _check_unpacked(file, path)
            model = json.loads(file.read("header.json"))["eval"]["model"]
            names = sorted(name for name in file.namelist() if name.startswith("samples/"))
            for name in names:  # one at a time: transcripts are large
                yield _inspected(json.loads(file.read(name)), model)
        return
    whole = _object(path)
    for row in whole.get("samples") or []:
        yield _inspected(row, whole["eval"]["model"])


def _inspected(row: Any, model: str) -> RecordedSample:
    """Return one sample of an Inspect log."""
    scores: Any = next(iter((row.get("scores") or {}).values()), {})
    value = scores.get("value")
    usage: Any = row["output"].get("usage") or {}
    asked = row["input"]
    return RecordedSample(
        question=asked if isinstance(asked, str) else json.dumps(asked, ensure_ascii=False), model=model,
        answer=None if scores.get("answer") is None else str(scores["answer"]),
        right=None if value is None else value in ("C", 1, 1.0, True), tokens=usage.get("output_tokens"),
        counted="output_tokens" in usage, text=row["output"].get("completion"),
        reward=float(value) if isinstance(value, int | float) else None,
    )  # fmt: skip


def _check_unpacked(file: zipfile.ZipFile, path: Path) -> None:
    """Raise `ConfigError` for an archive whose unpacked size exceeds the limits. The sizes come from its directory;
    `zipfile` never unpacks more."""
    sizes = [member.file_size for member in file.infolist()]
    for size, limit, what in (
        (max(sizes, default=0), MAX_MEMBER_BYTES, "one sample"),
        (sum(sizes), MAX_LOG_BYTES, "it"),
    ):
        if size > limit:
            raise ConfigError(
                f"{path}: {what} unpacks to {size:,} bytes, and the limit is {limit:,}. Split "
                "the log, or give it as .json"
            )


SOURCES: Mapping[str, Callable[[Path, Mapping[str, str]], Iterator[RecordedSample]]] = {
    "adaptive-consistency": _adaptive_consistency, "atts": _atts, "esc": _esc, "inspect": _inspect,
    "intercode": _intercode, "routellm": _routellm, "toolbench": _toolbench,
}  # fmt: skip
"""Functions by source name, each from a path and the right answers to samples."""


def import_samples(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=", ".join(SOURCES))],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files or folders as they are published.")],
    out: Annotated[Path, typer.Option(metavar="OUT.jsonl", help="Output file, one sample per line.")],
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Lines of `question` and `answer` for those without (atts)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read published recordings of models, and write them as samples.

    A sample has the question, the answer for votes, the verdict, the tokens (estimated from the text if no count was
    recorded) and the text. `python -m experiments votes --from OUT.jsonl` compares votes over these samples.
    """
    if source not in SOURCES:
        raise UsageError(
            f"there is no source {source!r}{did_you_mean(source, SOURCES)}: it is one of {', '.join(SOURCES)}"
        )
    samples: list[RecordedSample] = [sample for path in paths for sample in recorded_samples(source, path, answers)]
    write_samples(samples, out)
    judged = [sample for sample in samples if sample.right is not None]
    summary = {
        "samples": len(samples),
        "questions": len({sample.question for sample in samples}),
        "models": dict(Counter(sample.model for sample in samples)),
        "judged": len(judged),
        "right": sum(sample.right is True for sample in judged),
        "out": str(out),
    }
    with opened(as_json) as output:
        line = f"{out}: {pluralise(len(samples), 'sample')} of {pluralise(summary['questions'], 'question')}"
        output.report(summary, f"{line}, {summary['right']} right of {len(judged)} judged")


if __name__ == "__main__":
    typer.run(import_samples)

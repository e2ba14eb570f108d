"""Words of the command line that have changed.

For one minor version an old command line is rewritten, with a warning that shows the new one.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Sequence

COMMANDS = {
    "calibrate": "simulate calibrate", "compare": "eval", "ctl": "runs", "ctl events": "runs show --follow --json",
    "ctl list": "runs list --live", "ctl set": "runs set", "doctor versions": "doctor --quick",
    "engine down": "model down", "engine list": "model list", "engine up": "model up", "eval compare": "eval",
    "learn diff": "learn versions", "learn show": "learn versions", "learn takeover": "learn effort --planner takeover",
    "learn undo": "learn versions --undo", "model convert": "model get", "names": "plugins",
    "questions": "runs answer", "replay": "runs replay", "rollouts": "learn rollouts", "route": "learn route",
    "route fit": "learn route", "runs prune": "runs cancel", "runs questions": "runs answer",
    "runs top": "runs list --live --follow", "runs trace": "runs view --format=chrome",
    "runs watch": "runs show --follow", "runs why": "why", "top": "runs list --live --follow",
    "trace": "runs view --format=chrome", "try": "eval --quick", "tune": "simulate tune", "version": "doctor --quick",
    "view": "runs view",
}  # fmt: skip
"""Old commands whose arguments and flags a present command takes."""
FLAGS: dict[str, dict[str, str]] = {
    "": {"--anyway": "--force", "--help-all": "--help"},
    "demo": {"--puzzles": "--limit"},
    "doctor": {"--versions": "--quick"},
    "eval": {"--answers": "--out", "--count": "--limit", "--rows": "--limit"},
    "job submit": {"--id": "--name"},
    "learn strategies": {"--arm": "--planner"},
    "new": {"--in": "--out"},
    "plan": {"--dot": "--format=dot", "--mermaid": "--format=mermaid", "--plan-text": "--plan"},
    "plugins": {"--fidelity": "--verbose", "--options": "--verbose", "-o": "--verbose"},
    "run": {"--explain": "--verbose", "--stream": "--verbose"},
    "runs export": {"--redact": "--no-texts"},
    "runs list": {"--every": ""},
    "runs view": {"--content": "--texts", "--redact": "--no-texts"},
}
"""By command (`""`: all): old flags and their new names. Empty: the flag and its value are dropped."""
_SIMULATED = {
    "--cluster": "engines hosts replicas slots profile decode-rate call-seconds vary cache block slow die",
    "--load": "runs rate burstiness arrivals within share",
}
JOINED: dict[str, dict[str, str]] = {
    "job manifest": {"--cluster": "image workers cpus memory gpus claim secret namespace retries"},
    "job submit": {"--cluster": "address working-dir python"},
    "learn rollouts": {"--collect": "branches reward own ahead weights"},
    "runs export": {"--select": "verified distinct cheapest by tokenizer"},
    "simulate": _SIMULATED,
    "simulate calibrate": {},
    "simulate tune": {**_SIMULATED, "--search": "goal seeds confirm"},
}
"""By command: options that hold several named values, and the old flags that are fields of each now."""
_FIELDS = {"hosts": "engines", "replicas": "engines"}
"""Old flags that are fields of another name."""
_SWITCHES = ("--verified", "--distinct")
"""Old flags among those that had no value."""
SETTINGS = {
    "--adapter": "adapters", "--budget": "budget", "--cache": "cache", "--engines": "engines", "--gpus": "gpus",
    "--kv-cache-mib": "kv_cache_mib", "--max-model-len": "max_model_len", "--no-otel": "telemetry=false",
    "--on-uncertain-side-effect": "on_uncertain_side_effect", "--on-unknown": "on_uncertain_side_effect",
    "--otel": "telemetry=true", "--slots": "slots", "--tensor-parallel": "tensor_parallel", "--thinking": "thinking",
    "--threads": "threads", "--tool-actors": "tool_actors", "--top-p": "top_p", "--wait": "start_timeout",
}  # fmt: skip
"""Old flags of every command with settings: `--set NAME=VALUE` replaces them, unless a command has such a flag."""


def current_words(words: Sequence[str]) -> list[str]:
    """Return a command line in present words; warn on standard error if it was in old ones."""
    given = list(words)
    for count in (2, 1):
        if (new := COMMANDS.get(" ".join(given[:count]))) is not None and len(given) >= count:
            given = [*new.split(), *given[count:]]
            break
    for command in ("", given[0] if given else "", " ".join(given[:2])):
        given = _rename_flags(given, FLAGS.get(command, {}))
    given = _join_fields(given)
    rewrite = _REWRITTEN.get(given[0] if given else "") or _REWRITTEN.get(" ".join(given[:2]))
    if rewrite is not None:
        given = rewrite(given)
    if given != list(words):
        _warn(shlex.join(["plait", *given]))
    return given


def current_flags(words: Sequence[str], own: Collection[str]) -> list[str]:
    """Return a command's arguments with old flags of settings as `--set`; warn for each. `own`: flags of the command.

    `--dialect NAME` becomes an option of the planner.
    """
    result: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*result, word, *rest]
        if flag in own or (flag not in SETTINGS and flag != "--dialect"):
            result.append(word)
            continue
        setting = SETTINGS.get(flag, "dialect")
        if "=" not in setting:
            setting = f"{setting}={value if equals else next(rest, '')}"
        if flag == "--dialect":
            result = _set_dialect([*result, *rest], setting)
            _warn(f"--planner threads:{setting}")
            return current_flags(result, own)
        result += ["--set", setting]
        _warn(shlex.join(result[-2:]))
    return result


def _set_dialect(words: list[str], option: str) -> list[str]:
    """Return arguments with an option added to their planner, which is `threads` if they name none."""
    for place, word in enumerate(words):
        if word == "--planner" and place + 1 < len(words):
            spec = words[place + 1]
            return [*words[: place + 1], f"{spec}{',' if ':' in spec else ':'}{option}", *words[place + 2 :]]
    return ["--planner", f"threads:{option}", *words]


def _rename_flags(words: list[str], table: dict[str, str]) -> list[str]:
    result: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        new = table.get(flag)
        if new is None:
            result.append(word)
        elif new == "":
            _ = equals or next(rest, "")
        else:
            result.append(f"{new}={value}" if equals else new)
    return result


def _name_source(words: list[str]) -> list[str]:
    """Return `eval TASK --problems FILE` as `eval FILE --task TASK`."""
    file, (first, *rest) = _take_flag(words, "--problems")
    return [first, file, "--task", *rest] if file and rest and not rest[0].startswith("-") else words


def _count_actors(words: list[str]) -> list[str]:
    """Return `batch --engine ray-data` as `batch --actors 1`."""
    engine, rest = _take_flag(words, "--engine")
    if engine == "ray-data" and not any(word.partition("=")[0] == "--actors" for word in rest):
        rest += ["--actors", "1"]
    return rest


def _set_limit(words: list[str]) -> list[str]:
    """Return `runs limit RUN NAME VALUE` as `runs set NAME VALUE RUN`."""
    return ["runs", "set", *words[3:5], words[2], *words[5:]] if len(words) > 4 else words


def _choose_process(words: list[str]) -> list[str]:
    """Return `runs set slots 4 --pid N` as `runs set slots 4 N`."""
    pid, rest = _take_flag(words, "--pid")
    return [*rest[:4], pid, *rest[4:]] if pid else words


def _look_once(words: list[str]) -> list[str]:
    """Return `runs top --once`, which is `runs list --live --follow --once` by now, as `runs list --live`."""
    return [word for word in words if word not in ("--once", "--follow")] if "--once" in words else words


def _select_run(words: list[str]) -> list[str]:
    """Return `runs view JOURNAL --run ID` as `runs view ID --from JOURNAL`."""
    run, rest = _take_flag(words, "--run")
    return [*rest[:2], run, "--from", *rest[2:]] if run and len(rest) > 2 else words


def _configure_method(words: list[str]) -> list[str]:
    """Return `learn prompts` with its flags of a method as options of `--by`."""
    old = [word for word in words if word.partition("=")[0] in ("--rounds", "--runs")]
    by, rest = _take_flag(words, "--by")
    for flag, method in (("--rounds", "combee"), ("--runs", "gepa")):
        value, rest = _take_flag(rest, flag)
        if value and by in ("", method):
            by = f"{method}:{flag[2:]}={value}"
    return [*rest, "--by", by] if old else words


def _join_fields(words: list[str]) -> list[str]:
    """Return a command line with old flags as fields of the option that holds them now; the words after `--` stay."""
    table = next((JOINED[name] for name in (" ".join(words[:2]), *words[:1]) if name in JOINED), {})
    end = words.index("--") if "--" in words else len(words)
    own = [f"{word}=true" if word in _SWITCHES and table else word for word in words[:end]]
    for option, names in table.items():
        own = _join_flags(own, option, names.split())
    return [*own, *words[end:]]


def _join_flags(words: list[str], option: str, names: Sequence[str]) -> list[str]:
    """Return arguments with some flags as fields of one option."""
    fields: list[str] = []
    for name in names:
        values: list[str] = []
        while (taken := _take_flag(words, f"--{name}"))[0]:
            words = taken[1]
            values.append(taken[0])
        if values:
            value = values[0] if len(values) == 1 else f"[{','.join(values)}]"
            fields.append(f"{_FIELDS.get(name, name.replace('-', '_'))}={value}")
    if not fields:
        return words
    given, words = _take_flag(words, option)
    return [*words, option, ",".join([given, *fields] if given else fields)]


def _take_flag(words: list[str], flag: str) -> tuple[str, list[str]]:
    """Return the value of a flag, and the words without it; empty if it is not among them."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            end = place + (1 if equals else 2)
            return value or " ".join(words[place + 1 : end]), words[:place] + words[end:]
    return "", words


def _warn(new: str) -> None:
    from ..core.renamed import REMOVED_IN  # `plait --help` does without plait.core

    sys.stderr.write(f"warning: this form is deprecated and will be removed in plait {REMOVED_IN}: write `{new}`\n")


_REWRITTEN: dict[str, Callable[[list[str]], list[str]]] = {
    "batch": _count_actors,
    "eval": _name_source,
    "learn prompts": _configure_method,
    "runs limit": _set_limit,
    "runs list": _look_once,
    "runs set": _choose_process,
    "runs view": _select_run,
}
"""By command: what puts old arguments into another order."""

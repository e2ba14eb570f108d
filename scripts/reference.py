"""Writes docs/reference/ from the code: commands, settings, the public names, and every plugin with its options.

    python scripts/reference.py [FOLDER]     (or `make docs`)

It decides how the pages look; their content comes from the docstrings. `pages()` returns them without writing, which is
how a test finds out that the committed ones are out of date. It starts nothing and reads no environment.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plait.core.declarations import Fidelity

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference.py from the docstrings: `make docs`. -->\n"
ORACLES = ROOT / "tests" / "oracles"
FIDELITY = """# Fidelity

How near each published method is to what its authors have: `exact` (an oracle holds it), a `variant` (what differs),
the paper's `formula` (without an oracle), or only the `idea`. The same by `plait plugins -v`.

"""
ORACLES_INTRO = """
## Oracles

Functions of the authors, run on generated inputs; what they returned is kept as facts in `tests/oracles/`, and a test
holds ours to it. `make fidelity CLONES=FOLDER` runs the functions themselves on new inputs, where a folder holds clones
of their repositories. `python -m tests.oracles.mutate` breaks each method in three places or more; a test wants every
break to fail its oracle.

"""
NOT_HELD = """
Not held, since there is no public code for it or none that could be had: SSR, SEAT, DeepPrune's judge, the trained
predictor of dynamic speculative planning, ParaThinker's engine. Of the released models' tokenizers only the words that
training adds are held. EllieSQL's features are of a database's schema, ours of the question's text.
"""
FIELDS = """# Fields of requests

What becomes of each field that the protocols of OpenAI, vLLM and SGLang have, in bodies that go to
[`plait serve`](../howto/serve.md). What has no row is ignored, and named in the header `x-plait-ignored` of the
answer, as is what is ignored below. `strict = true` in `[serve]` refuses both, but for fields that OpenAI has. What is
passed on reaches the upstream where the tenant's rights (`extra_body`) and the worker allow, and is ignored and named
elsewhere.
"""
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}  # fmt: skip
UNITS = {"requests_per_minute": "requests / min", "cost_per_day": "cost / day", "tokens_per_day": "tokens / day",
         "bytes_per_tenant": "bytes", "seconds": "s", "_wait": "s", "bytes": "bytes", "tokens_per_run": "tokens",
         "connections": "connections", "responses": "responses", "runs": "runs"}  # fmt: skip
"""Units of the server's numbers, by a part of their names."""
SERVER_NOTES = {
    "api_key_env": "Environment variable with the server's key.", "base_url": "URL of an OpenAI-compatible server.",
    "engines": "As the common setting.", "model": "As the common setting.", "name": "Name in logs, metrics and limits.",
    "requests_per_minute": "Rate limit. No limit by default.", "script": "Replies of the scripted worker.",
    "seconds_per_run": "Time limit of a run.", "slots": "Concurrent requests.", "tls_key": "The key, PEM.",
    "tokens_per_run": "Token limit of a run; the server's by default.",
}  # fmt: skip
KINDS = {
    "planner": ("Planners", "planners.md", "Usage and pictures: [planners](../planners.md). `--planner {}`"),
    "policy": ("Policies", "policies.md", "Which to use when: [policies](../policies.md). `--policy {}`"),
    "merge": ("Merges and allocations", "merges.md", "Which to use when: [policies](../policies.md). `--merge {}`"),
    "search": ("Searches", "searches.md", "Which node of a tree grows next. `--planner tree:search={}`"),
    "environment": ("Environments", "environments.md", "Where answers are graded. `plait eval --environment {}`"),
    "scorer": ("Scorers", "scorers.md", "How promising a partial solution is. `--planner tree:scorer={}`"),
    "task": ("Tasks", "tasks.md", "What a request's text means. `--task {}`"),
    "worker": ("Workers", "workers.md", "What runs steps. Their options are keywords of the class: `--worker NAME` and "
               "[settings](settings.md), or an instance in `workers=[…]`"),
}  # fmt: skip


def main(words: list[str]) -> int:
    """Write the pages, and take away those that are none any more."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args(words).folder
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """Return the text of each page, by its file name."""
    import plait
    from plait import core
    from plait.core import errors, events
    from plait.runtime.client import answer, handle
    from plait.runtime.client.config import Config

    own = [each for each in plait.__all__ if each not in ("__version__", "Config")]
    rest = [each for each in core.__all__ if each not in own]
    public = {each: getattr(plait, each) for each in own}
    public["Handle"] = handle.Handle
    inner = {each: getattr(core, each) for each in rest}
    for name in ("Job", "Submitted", "Progressed", "Succeeded", "Failed", "Tick"):
        inner[name] = getattr(events, name)
    for name in ("Report", "StepReport"):
        if hasattr(answer, name):
            public[name] = getattr(answer, name)
    faults = {
        each: cls
        for each, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, Exception) and cls.__module__ == errors.__name__
    }
    made = {
        "commands.md": _commands(),
        "settings.md": _settings(Config),
        "sdk.md": _names("SDK", "`from plait import …`", public, "plait"),
        "core.md": _names("Core", "`from plait.core import …`: what plugins are written against. Events come "
                          "from `plait.core.events`.", inner, "plait.core"),
        "errors.md": _errors(faults),
        "fields.md": _fields(),
    }  # fmt: skip
    made |= {file: _plugins(kind, title, intro) for kind, (title, file, intro) in KINDS.items()}
    made["fidelity.md"] = _fidelity()
    listed = "".join(f"- [{text.splitlines()[0].lstrip('# ')}]({name})\n" for name, text in made.items())
    made["README.md"] = f"# Reference\n\nMade from the docstrings by `make docs`.\n\n{listed}"
    return {name: f"{text.rstrip()}\n\n{NOTE}" for name, text in made.items()}


def _fields() -> str:
    """Return the page of what becomes of each field of a request to `plait serve`."""
    from plait_server.fields import LEDGER

    said: dict[str, list[str]] = {}
    for name, row in sorted(LEDGER.items()):
        endpoint, _, bare = name.rpartition(".")
        where = f" ({endpoint})" if endpoint else ""
        said.setdefault(row.support, []).append(f"| `{bare}`{where} | {_cell(row.note)} |\n")
    parts = [f"\n## {fate.capitalize()}\n\n| field | |\n|---|---|\n{''.join(rows)}" for fate, rows in said.items()]
    return FIELDS + "".join(parts)


# --- commands and settings ---


def _commands() -> str:
    from plait.apps.main import build

    root = build()
    root.load_all()
    parts = [
        "# Commands\n",
        "Exit codes: 0 an answer; 1 none, or something is wrong; 2 the caller's mistake; 130 Ctrl-C. With `--json` one "
        "JSON object goes to standard output and everything else to standard error.\n",
    ]
    shared = _shared(dict(_leaves(root, "plait")))
    for name, command in _leaves(root, "plait"):
        parts.append(f"## {name}\n\n{_prose(command.help or '')}\n")
        takes = [each for each in command.params if each.name != "help"]
        arguments = [each for each in takes if not each.opts[0].startswith("-")]
        options = [each for each in takes if each.opts[0].startswith("-")]
        own = [each for each in options if each.name not in shared]
        rows = [*map(_parameter, arguments), *map(_parameter, own)]
        if rows:
            parts.append(_table(("", "takes", "default", ""), rows))
        if len(own) < len(options):
            parts.append("And the [options of commands with a model](#model-and-workers).\n")
    parts.append("## Model and workers\n\nEvery command that runs, plans or finds something takes these too; "
                 "[settings](settings.md) says where else they may come from.\n")  # fmt: skip
    parts.append(_table(("", "takes", "default", ""), map(_parameter, shared.values())))
    return "\n".join(parts)


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner: Mapping[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if getattr(command, "default", None) is not None:
        yield path, command.default
    for name, each in inner.items():
        yield from _leaves(each, f"{path} {name}")


def _shared(commands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `options.Common`."""
    from plait.apps.common.options import Common

    names = {each.name for each in dataclasses.fields(Common)}
    return {each.name: each for each in commands["plait run"].params if each.name in names}


def _parameter(each: Any) -> tuple[str, str, str, str]:
    option = each.opts[0].startswith("-")
    spelled = " ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
    spelled = spelled if option else f"`{each.metavar or each.name}`"
    if option and getattr(each, "is_flag", False):
        takes = ""
    else:
        kind = each.type_descriptor.annotation
        takes = f"`{each.metavar}`" if option and each.metavar else _type(kind)
    bounds = [f"{sign} {value:g}" for sign, value in (("≥", each.min), ("≤", each.max)) if value is not None]
    takes = " ".join([takes, ", ".join(bounds)]).strip()
    default = each.default
    shown = "required" if each.required else "" if default in (None, "", False, [], ()) else f"`{_plain(default)}`"
    return spelled, takes, shown, each.help or ""


def _settings(config: Any) -> str:
    rows = [
        (f"`{name}`", _field_type(field), _default(field), field.description or "")
        for name, field in config.model_fields.items()
    ]
    return (
        "# Settings\n\n"
        "The weakest first: defaults, `plait.toml` in the current folder (or the file in `--config`, `PLAIT_CONFIG`), "
        "environment variables `PLAIT_NAME`, flags of the command line (arguments in Python: "
        "`Orchestrator(engines=2)`). `plait config show` lists each with its value and where that comes from.\n\n"
        + _table(("setting", "takes", "default", ""), rows)
        + _server_settings()
    )


def _server_settings() -> str:
    """Return the tables of plait.toml that `plait serve` and `plait mcp` read, with the unit of each number."""
    from plait_server.mcp.http import McpAccess
    from plait_server.settings import Settings, Tenant, Upstream

    tables = (("[serve]", Settings, "`plait serve`; its flags override them. `plait serve --check` tries them."),
              ("[[serve.tenants]]", Tenant, "One table for each tenant."),
              ("[[serve.upstreams]]", Upstream, "One table for each server, or each engine of this machine."),
              ("[mcp_server]", McpAccess, "`plait mcp --http`."))  # fmt: skip
    parts: list[str] = []
    for name, cls, intro in tables:
        docs = {field: text for base in cls.__mro__[:3] for field, text in _attribute_docs(base).items() if text}
        rows = [(f"`{field}`", _field_type(info), _default(info), _unit(field), docs.get(field) or SERVER_NOTES[field])
                for field, info in cls.model_fields.items()]  # fmt: skip
        parts.append(f"\n## {name}\n\n{intro}\n\n" + _table(("setting", "takes", "default", "unit", ""), rows))
    return "".join(parts)


def _unit(name: str) -> str:
    """Return the unit of a setting by its name."""
    return next((unit for part, unit in UNITS.items() if part in name), "")


# --- names of modules ---


def _names(title: str, intro: str, found: Mapping[str, Any], module: str) -> str:
    parts = [f"# {title}\n\n{intro}\n"]
    for name, value in found.items():
        parts.append(f"## {name}\n")
        home = getattr(value, "__module__", module)
        if not home.startswith("plait"):
            home = module
        if name in ("Handle", "Report", "StepReport"):
            parts.append(f"From `{home}`.\n")
        parts.append(_described(value))
    return "\n".join(parts)


def _described(value: Any) -> str:
    if inspect.isclass(value):
        return _class(value)
    if inspect.isfunction(value):
        return f"```python\n{_signature(value.__name__, value)}\n```\n\n{_prose(inspect.getdoc(value) or '')}\n"
    origin = typing.get_origin(value)
    if origin is typing.Annotated:
        value = typing.get_args(value)[0]
    return f"{_type(value)}\n"


def _class(cls: type) -> str:
    parts = [_prose(_own_doc(cls)) + "\n"]
    fields = cls.model_fields if issubclass(cls, BaseModel) else None
    if fields:
        ours = [base for base in reversed(cls.__mro__) if base.__module__.startswith("plait.")]
        docs = {name: text for base in ours for name, text in _attribute_docs(base).items() if text}
        rows = [
            (f"`{name}`", _field_type(field), _default(field), field.description or docs.get(name, ""))
            for name, field in fields.items()
        ]
        parts.append(_table(("field", "takes", "default", ""), rows))
    elif dataclasses.is_dataclass(cls):
        docs = _attribute_docs(cls)
        hints = cls.__annotations__
        rows = [
            (f"`{each.name}`", f"`{hints.get(each.name, '')}`", _dataclass_default(each), docs.get(each.name, ""))
            for each in dataclasses.fields(cls)
        ]
        parts.append(_table(("field", "takes", "default", ""), rows))
    elif "__init__" in vars(cls) and not getattr(cls, "_is_protocol", False):
        parts.append(f"```python\n{_signature(cls.__name__, cls.__init__)}\n```\n")
    elif rows := [(f"`{name}`", f"`{cls.__annotations__[name]}`", text) for name, text in _attribute_docs(cls).items()]:
        parts.append(_table(("attribute", "is", ""), rows))
    parts += [_method(name, member) for name, member in vars(cls).items() if _is_public(name, member)]
    return "\n".join(parts)


def _method(name: str, member: Any) -> str:
    if isinstance(member, property):
        return f"- **`{name}`**: {_inline(inspect.getdoc(member) or '')}"
    fn = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    doc = _prose(inspect.getdoc(fn) or "")
    return f"**`{_signature(name, fn, short=True)}`**\n\n{doc}\n"


def _is_public(name: str, member: Any) -> bool:
    if name.startswith(("_", "model_")):
        return False
    if isinstance(member, property | classmethod | staticmethod):
        return True
    return inspect.isfunction(member) and bool(member.__doc__)


def _errors(found: Mapping[str, type]) -> str:
    head = (
        "# Errors\n\nFrom `plait.core.errors`. Those that a call raises are exceptions; those of a step or a "
        "run are data (`Failure.kind` is the class's name).\n\n"
    )
    rows = [(f"`{name}`", f"`{cls.__mro__[1].__name__}`", _inline(_own_doc(cls))) for name, cls in found.items()]
    return head + _table(("error", "is a", ""), rows)


# --- plugins ---


def _plugins(kind: Any, title: str, intro: str) -> str:
    from plait.runtime.plugins.loader import Plugins

    plugins = Plugins()
    intro = intro.format("NAME:option=value,…")
    parts = [f"# {title}\n\n{intro}; `plait plugins {kind} -v` lists them.\n"]
    for name in plugins.names(kind):
        cls = plugins.class_of(kind, name)
        file = Path(inspect.getsourcefile(cls) or "").resolve().relative_to(ROOT)
        parts.append(f"## {name}\n\n[{file}](../../{file})\n\n{_prose(_own_doc(cls))}\n")
        parts += _declared(cls)
        fields = cls.model_fields if issubclass(cls, BaseModel) else None
        if fields is None:
            parts.append(_table(("option", "takes", "default"), _keywords(cls)))
            continue
        rows = [
            (f"`{option}`", _field_type(field), _default(field), field.description or "")
            for option, field in fields.items()
            if not (kind == "task" and option == "text")
        ]
        parts.append(_table(("option", "takes", "default", ""), rows) if rows else "No options.\n")
    if kind == "worker":
        from plait.workers import ray as ray_pool

        parts.append("## pool\n\nFrom `plait.workers.ray`.\n\n" + _described(ray_pool.pool))
    return "\n".join(parts)


def _declared(cls: type) -> Iterator[str]:
    """Yield a paragraph on the fidelity and one on the record that a plugin declares."""
    fidelity: Fidelity | None = getattr(cls, "fidelity", None)
    if fidelity is not None:
        differs = f" ({fidelity.differs})" if fidelity.differs else ""
        held = ", ".join(f"`{name}`" for name in fidelity.oracles)
        yield f"Fidelity: {fidelity.kind}{differs}; {f'held by {held}' if held else 'no oracle'}.\n"
    if lost := getattr(cls, "lost_in", ()):
        yield f"Evidence: loses wherever it was tried ({', '.join(lost)}).\n"


def _keywords(cls: type) -> list[tuple[str, str, str]]:
    hints = cls.__init__.__annotations__
    return [
        (f"`{each.name}`", f"`{hints.get(each.name, '')}`",
         "required" if each.default is each.empty else f"`{_plain(each.default)}`")
        for each in inspect.signature(cls).parameters.values()
    ]  # fmt: skip


# --- how things are written ---


def _fidelity() -> str:
    """Return the page of methods and oracles, from the classes and the first lines of the facts."""
    from plait.apps.commands.plugins import fidelities, not_built
    from plait.runtime.plugins.loader import Plugins

    methods = [row for kind in KINDS for row in fidelities(Plugins(), kind)]
    heads = {path.stem: json.loads(path.read_text("utf-8").partition("\n")[0]) for path in ORACLES.glob("*.jsonl")}
    oracles = [
        (
            f"`{name}`",
            f"[{head['repository']}](https://github.com/{head['repository']}/tree/{head['commit']})",
            head["function"],
            head["licence"],
            f"{head['cases']:,}",
            f"{head['differ']:,}" + (f": {head['what']}" if head["what"] else ""),
        )
        for name, head in sorted(heads.items())
    ]
    rows = [
        (
            f"`{row['name']}`",
            row["kind"],
            f"[{row['paper']}](https://arxiv.org/abs/{row['paper']})" if row["paper"] else "",
            row["fidelity"],
            row["differs"],
            ", ".join(f"`{one}`" for one in row["oracles"]),
        )
        for row in methods
    ]
    return (
        FIDELITY
        + _table(("method", "kind", "paper", "", "what differs", "held by"), rows)
        + "\n## Other papers, and what plait has in their place\n\n"
        + _table(("paper", "name", "in its place"), [tuple(row.values()) for row in not_built()])
        + ORACLES_INTRO
        + _table(("oracle", "repository", "function", "licence", "cases", "differ"), oracles)
        + NOT_HELD
    )


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(_cell(each) for each in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def _own_doc(cls: type) -> str:
    """Return a class's docstring, not one that it inherits (nor the one that a dataclass makes itself)."""
    doc = inspect.cleandoc(vars(cls).get("__doc__") or "")
    return "" if doc.startswith(f"{cls.__name__}(") else doc


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: examples fenced, `Args:` as a list."""
    lines: list[str] = []
    inside = ""
    for line in doc.splitlines():
        if line.startswith(">>>") and inside != "code":
            inside = "code"
            lines.append("```python")
        elif inside == "code" and not line.strip():
            inside = ""
            lines.append("```")
        elif line.rstrip() in ("Args:", "Attributes:", "Options:", "Raises:", "Returns:"):
            inside = "list"
            lines += [line.strip(), ""]
            continue
        elif inside == "list" and not line.startswith("    "):
            inside = ""
        if inside == "list":
            deeper = line.startswith("        ")
            lines.append(f"  {line.strip()}" if deeper else f"- `{line.strip().replace(':', '`:', 1)}")
        else:
            lines.append(line)
    return "\n".join([*lines, "```"] if inside == "code" else lines).strip()


def _inline(doc: str) -> str:
    return " ".join(doc.split())


def _signature(name: str, fn: Callable[..., Any], *, short: bool = False) -> str:
    parameters = []
    for each in inspect.signature(fn).parameters.values():
        if each.name == "self" or each.name == "cls":
            continue
        annotation = each.annotation if isinstance(each.annotation, str) else ""
        default = "" if each.default is each.empty else _plain(each.default)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        word = f"{star}{each.name}" + (f": {annotation}" if annotation and not short else "")
        parameters.append(
            (each.kind, word + (f" = {default}" if default and not short else f"={default}" if default else ""))
        )
    words: list[str] = []
    for kind, word in parameters:
        if kind is inspect.Parameter.KEYWORD_ONLY and not any(w.startswith("*") for w in words):
            words.append("*")
        words.append(word)
    returns = fn.__annotations__.get("return", "")
    arrow = f" -> {returns}" if isinstance(returns, str) and returns not in ("", "None") else ""
    start = "async " if inspect.iscoroutinefunction(fn) else ""
    line = f"{start}{name}({', '.join(words)}){arrow}"
    if short or len(line) <= 100:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{start}{name}(\n{inner}){arrow}"


def _field_type(field: Any) -> str:
    limits = [
        f"{sign} {getattr(each, name):g}"
        for each in field.metadata
        for name, sign in LIMITS.items()
        if getattr(each, name, None) is not None
    ]
    return ", ".join([_type(field.annotation), *limits])


def _type(kind: Any) -> str:
    return f"`{_spelled(kind)}`"


def _spelled(kind: Any) -> str:
    if kind is None or kind is type(None):
        return "None"
    if kind is Ellipsis:
        return "..."
    if isinstance(kind, str):
        return kind
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _spelled(inner[0])
    if origin is typing.Literal:
        return " | ".join(json.dumps(each) for each in inner)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(_spelled, inner)))
    if inner:
        base = getattr(origin, "__name__", str(origin))
        return f"{base}[{', '.join(_spelled(each) for each in inner)}]"
    if name := getattr(kind, "__name__", ""):
        return name
    return str(kind).replace("typing.", "").rpartition(".")[2]


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    return f"`{_plain(field.get_default(call_default_factory=True))}`"


def _dataclass_default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{_plain(field.default)}`"
    return "required" if field.default_factory is dataclasses.MISSING else f"`{_plain(field.default_factory())}`"


def _plain(value: Any) -> str:
    """Return a default as one would write it; nothing of this machine gets into it."""
    from plait.core import Plugin

    if isinstance(value, str | Path) and str(ROOT) in str(value):
        return "the bundled model"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Plugin):
        given = ",".join(f"{key}={each}" for key, each in value.options.items())
        return f"{value.name}:{given}" if given else value.name
    if isinstance(value, BaseModel):
        given = ", ".join(f"{key}={_plain(each)}" for key, each in value.model_dump(exclude_defaults=True).items())
        return f"{type(value).__name__}({given})"
    if isinstance(value, tuple | list) and value:
        return f"({', '.join(_plain(each) for each in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


def _attribute_docs(cls: type) -> dict[str, str]:
    """Return the strings that stand under a class's attributes, which the interpreter throws away."""
    import ast
    import textwrap

    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, SyntaxError):
        return {}
    found: dict[str, str] = {}
    last = ""
    for node in getattr(body, "body", ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
            if not last.startswith("_"):
                found.setdefault(last, "")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            if last in found and isinstance(node.value.value, str):
                found[last] = inspect.cleandoc(node.value.value)
            last = ""
        else:
            last = ""
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

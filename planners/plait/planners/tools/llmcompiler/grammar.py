"""The language of plans as a grammar, which an engine enforces while a model writes a plan.

A plan has a line for each task. Task k refers only to earlier results, and the tools' schemas type its arguments:

    1. search(query="Rome", limit=3)
    2. search(query="Milan")
    3. sum(values=[$1, $2])
    4. join()<END_OF_PLAN>

The grammar uses the EBNF that XGrammar, llama.cpp and SGLang share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from plait.core.tools.tool import ToolSpec

LINES = 16
"""Number of tasks whose references are checked while they are written; later tasks may refer to all these tasks."""
MOST_TOOLS = 64
"""Maximum number of tools: with more, a grammar exceeds 100,000 characters, and only the prompt describes plans."""
_DEEPEST = 4
"""Maximum depth of typed nested lists; deeper lists are any JSON."""
_COMMON = r"""
text ::= "\"" char* "\""
char ::= [^"\\\n\r$] | "\\" ["\\/nrt] | "$$" | "$" [^0-9{$"\\\n\r]
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= integer ("." [0-9]{1,15})? ([eE] [+-]? [0-9]{1,3})?
boolean ::= "true" | "false"
null ::= "null"
value ::= text | number | boolean | null | list | object
list ::= "[" (value (", " value)*)? "]"
object ::= "{" (text ": " value (", " text ": " value)*)? "}"
thought ::= ("Thought: " [^\n]{1,400} "\n")?
later ::= [1-9] [0-9]{1,3}
"""


def grammar(tools: Sequence[ToolSpec], known: Sequence[int] = (), first: int = 1) -> str:
    """Return the grammar of plans that call these tools. `known` are the numbers of earlier plans' results, `first` is
    the number of this plan's first task. References inside a text are not constrained; the plan's reader checks
    them."""
    rules: list[str] = []
    kinds = _Kinds()
    shapes = [_shape(spec, kinds) for spec in tools]
    for place in range(LINES + 1):
        refs = [*known, *range(first, first + place)]
        rules += kinds.rules(place, refs)
        calls = " | ".join(f"call-{number}-{place}" for number in range(len(tools)))
        rules += [f"call-{number}-{place} ::= {shape.replace('@', str(place))}" for number, shape in enumerate(shapes)]
        rules.append(f"call-{place} ::= {calls}")
        end = '"join()<END_OF_PLAN>"'
        if place == LINES:  # later tasks have any number
            rules.append(f'line-{place} ::= thought later ". " ({end} | call-{place} "\\n" line-{place})')
        elif place == 0:
            rules.append(f'line-0 ::= thought "{first}. " call-0 "\\n" line-1')
        else:
            more = f'call-{place} "\\n" line-{place + 1}'
            rules.append(f'line-{place} ::= thought "{first + place}. " ({end} | {more})')
    return "\n".join(["root ::= line-0", *_COMMON.strip().splitlines(), *rules]) + "\n"


class _Kinds:
    """The kinds of argument values. In each line a value may also be a reference to an earlier result."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}

    def name(self, schema: Mapping[str, JsonValue], depth: int = 0) -> str:
        """Return the name of the rule of a schema's values; `@` in it is replaced by the line."""
        body = self._body(schema, depth)
        return self._bodies.setdefault(body, f"kind-{len(self._bodies)}-@")

    def _body(self, schema: Mapping[str, JsonValue], depth: int) -> str:
        match schema:
            case {"enum": list() as values} if values:
                return " | ".join(_literal(json.dumps(value, ensure_ascii=False)) for value in values)
            case {"const": value}:
                return _literal(json.dumps(value, ensure_ascii=False))
            case {"anyOf": list() as kinds} | {"oneOf": list() as kinds} if kinds:
                return " | ".join(self._body(kind, depth) if isinstance(kind, dict) else "value" for kind in kinds)
            case {"type": list() as kinds} if kinds:
                return " | ".join(self._body({**schema, "type": kind}, depth) for kind in kinds)
            case {"type": "array", "items": dict() as items} if depth < _DEEPEST:
                inner = self.name(items, depth + 1)
                return f'"[" ({inner} (", " {inner})*)? "]"'
            case {"type": "array"}:
                return "list"
            case {"type": "object"}:
                return "object"
            case {"type": "string"}:
                return "text-@"
            case {"type": "integer" | "number" | "boolean" | "null" as kind}:
                return kind
            case _:
                return "value"

    def rules(self, place: int, refs: Sequence[int]) -> list[str]:
        """Return the rules of one line, which may refer to these results."""
        which = " | ".join(f'"{number}"' for number in refs)
        ref = f' | "$" ref-{place}' if refs else ""
        within = f' | "${{" ref-{place} "}}"' if refs else ""
        made = [f"ref-{place} ::= {which}"] if refs else []
        made.append(f'text-{place} ::= "\\"" (char{within})* "$"? "\\""')
        for body, name in self._bodies.items():
            made.append(f"{name.replace('@', str(place))} ::= {body.replace('@', str(place))}{ref}")
        return made


def _shape(spec: ToolSpec, kinds: _Kinds) -> str:
    """Return the body of a call's rule: required arguments, then optional arguments, each in the schema's order. All
    are written with names, since small models confuse the order."""
    properties, required = spec.parameters.get("properties"), spec.parameters.get("required")
    fields = properties if isinstance(properties, dict) else {}
    must = required if isinstance(required, list) else []
    rules = {name: kinds.name(kind if isinstance(kind, dict) else {}) for name, kind in fields.items()}
    needed = ' ", " '.join(f"{_literal(f'{name}=')} {kind}" for name, kind in rules.items() if name in must)
    others = [f"{_literal(f'{name}=')} {kind}" for name, kind in rules.items() if name not in must]
    name = _literal(f"{spec.name}(")
    if needed:
        return " ".join([name, needed, *(f'(", " {other})?' for other in others), '")"'])
    # The first argument has no comma before it.
    tails = [" ".join([first, *(f'(", " {other})?' for other in others[at + 1 :])]) for at, first in enumerate(others)]
    return f'{name} ({" | ".join(tails)})? ")"' if tails else f'{name} ")"'


def _literal(text: str) -> str:
    """Return a text as a terminal of the grammar."""
    return json.dumps(text, ensure_ascii=True)

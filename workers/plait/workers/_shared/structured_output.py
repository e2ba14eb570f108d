"""Which specification each kind of output form takes. Schemas, expressions and grammars themselves are not read."""

from __future__ import annotations

from typing import Any

from plait.core.errors import EngineError
from plait.core.sampling import StructuredOutput


def specified(form: StructuredOutput) -> Any:
    """Return the specification of a form, checked for its type. Raises `EngineError`."""
    match form.kind, form.spec:
        case "json", dict() as schema:
            return schema
        case "regex" | "grammar", str() as text if text:
            return text
        case "choice", list() as texts if texts and all(isinstance(text, str) and text for text in texts):
            return texts
        case _:
            raise EngineError(f"the form {form.kind!r} is specified by {WANTED[form.kind]}, not {form.spec!r:.80}")


WANTED = {
    "json": "a JSON schema (an object)",
    "regex": "a regular expression (a string)",
    "grammar": "a grammar (a string)",
    "choice": "a list of texts",
}

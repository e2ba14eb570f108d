"""The fields of a body that hold its answer to a form, as vLLM's and SGLang's clients say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from plait.core.sampling import StructuredOutput

from .errors import invalid

_KINDS = ("json", "json_object", "regex", "choice", "grammar")


class ClientObject(BaseModel):
    """An object in a body. It may have fields that plait does not know."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)


class StructuredOutputs(ClientObject):
    """`structured_outputs`: one of its fields sets the form."""

    json_: dict[str, JsonValue] | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)
    grammar: str | None = None


class StructuredOutputFields(BaseModel):
    """The fields for a structured output; a request may set one."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, JsonValue] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(default=None, min_length=1)
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: dict[str, JsonValue] | str | None = None

    @property
    def output_form(self) -> dict[str, JsonValue] | None:
        """The JSON schema of the answer. Raises `ApiError` for a body without a form, or with several."""
        name, kind, spec = self._read_form()
        if kind == "json_object":
            return {"type": "object"}
        return _parse_schema(name, spec) if kind == "json" else None

    @property
    def text_form(self) -> StructuredOutput | None:
        """Another form that the answer's text is held to. Raises `ApiError`."""
        _, kind, spec = self._read_form()
        return StructuredOutput(kind=cast("Any", kind), spec=spec) if kind in ("regex", "choice", "grammar") else None

    def _read_form(self) -> tuple[str, str, JsonValue]:
        """Return (field, kind, spec) of the structured output, or empty strings."""
        given = self.structured_outputs
        inner: Mapping[str, Any] = {} if given is None else given.model_dump(by_alias=True, exclude_none=True)
        forms = [(f"structured_outputs.{kind}", kind, inner[kind]) for kind in _KINDS if inner.get(kind)]
        outer = {
            "guided_json": "json",
            "guided_regex": "regex",
            "guided_choice": "choice",
            "guided_grammar": "grammar",
            "regex": "regex",
            "ebnf": "grammar",
            "json_schema": "json",
        }
        forms += [(name, kind, getattr(self, name)) for name, kind in outer.items() if getattr(self, name)]
        if len(forms) > 1:
            both = " and ".join(name for name, _, _ in forms[:2])
            raise invalid(f"{both} both say the form of the answer: give one", forms[1][0])
        if given is not None and not forms:
            raise invalid(f"`structured_outputs` needs one of {', '.join(_KINDS)}", "structured_outputs")
        return forms[0] if forms else ("", "", None)


def _parse_schema(name: str, spec: JsonValue) -> dict[str, JsonValue]:
    if isinstance(spec, str):
        from pydantic_core import from_json

        try:
            spec = from_json(spec)
        except ValueError as error:
            raise invalid(f"{name} is no JSON: {error}", name) from None
    if not isinstance(spec, dict):
        raise invalid(f"{name} is no JSON schema", name)
    return spec

"""What a request says besides its text, read and checked: a conversation, and what all model calls ask for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ...core.chat import Message, read_messages
from ...core.errors import FieldError, TaskError, UsageError
from ...core.form import ADAPTERS, Form
from ...core.interfaces import Brief
from ...core.ops import Function
from ...core.plan import Asking, Plan
from ...core.result import as_failure
from ...core.tools.tool import ToolSpec, is_name
from ...core.values import json_value, writable
from ..driver.effects import revised
from ..driver.forms import check_schema
from ..plugins.trust import trust
from . import kinds
from .answer import Answer
from .options import Options

_MAPPINGS = ("logit_bias", "chat_template_kwargs", "extra_body")


def asked(text: str, messages: object) -> tuple[str, tuple[Message, ...]]:
    """Return the text that is asked and the conversation before it.

    The text is the one given, or the last message if that is the user's. Raises `FieldError` for what is no
    conversation, and for one that asks nothing.
    """
    if messages is None:
        return text, ()
    given = messages
    if text and isinstance(messages, list | tuple):  # a conversation that ended goes on
        given = [*cast("Iterable[object]", messages), {"role": "user", "content": text}]
    found = read_messages(given)
    last = found[-1]
    if last.role == "tool":
        return next(each.text for each in reversed(found) if each.role == "user"), found
    if last.role != "user":
        raise FieldError(f"messages ends with the {last.role}'s message: there is nothing to answer")
    if not last.text.strip():
        raise FieldError("the last message has no text: say what is asked")
    if not last.images:
        return last.text, found[:-1]
    images = tuple(part for part in last.parts if part.type == "image_url")
    return last.text, (*found[:-1], last.model_copy(update={"content": images}))


def asking(options: Mapping[str, Any]) -> Asking:
    """Return what a request's options say of all its model calls. Raises `UsageError` in words."""
    given = {name: options[name] for name in Asking.model_fields if options.get(name) is not None}
    if not given:
        return Asking()
    for name in _MAPPINGS:
        if name in given:
            given[name] = _mapping(name, given[name])
    if "stop" in given:
        stop = given["stop"]
        texts = (stop,) if isinstance(stop, str) else tuple(kinds.iterable("stop", stop, 'stop=["\\n\\n"]'))
        if not all(isinstance(each, str) and each for each in texts):
            raise UsageError("stop: each stop text is a text that is not empty")
        given["stop"] = texts
    if "functions" in given:
        functions = kinds.iterable("functions", given["functions"], 'functions=[{"name": "f", "parameters": {…}}]')
        given["functions"] = tuple(_function(each) for each in functions)
    return Asking(**given)


def approvals(given: object, tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """Return the names of tools whose calls a person has to allow. Raises `UsageError` for one that is not there."""
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(kinds.iterable("approve", given, 'approve=["write"]'))
    known = ["all", "side-effects", *(each.name for each in tools)]
    for name in names:
        if name not in known:
            raise UsageError(f"approve: there is no tool {name!r:.80}; there are: {', '.join(known)}")
    return cast("tuple[str, ...]", names)


def form_of(kind: object) -> Form | None:
    """Return the form of the answer that a type asks for. Raises `FieldError`."""
    if kind is None:
        return None
    form = Form.of(kind)[0]
    check_schema(form)
    return form


def typed(answer: Answer, form: Form | None) -> Answer:
    """Return an answer with its value as the type that was asked for: as plain JSON if the type is not known here."""
    if form is None or answer.failure is not None or answer.value is None:
        return answer
    adapter = ADAPTERS.get(form.key)
    if adapter is None:
        return answer.model_copy(update={"output": answer.value, "answer": answer.value})
    try:
        output = adapter.validate_json(json.dumps(answer.value))
    except Exception as error:  # pydantic's, or a validator of the user's own
        said = str(error).strip().partition("\n")[0]
        failure = as_failure(TaskError(f"the answer is not of the type that was asked for: {said}"))
        return answer.model_copy(update={"failure": failure, "status": "failed"})
    return answer.model_copy(update={"output": output, "answer": answer.value})


def _mapping(name: str, given: object) -> object:
    if not isinstance(given, Mapping):
        raise UsageError(f"{name} is a {type(given).__name__}: give a dictionary")
    try:
        return json_value(dict(cast("Mapping[object, object]", given)))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _function(given: object) -> Function:
    """Return a function, also of OpenAI's form `{"type": "function", "function": {…}}`."""
    if isinstance(given, Function):
        return given
    fields: object = given
    if isinstance(given, Mapping):
        entries = cast("Mapping[object, object]", given)
        fields = entries["function"] if entries.get("type") == "function" and "function" in entries else entries
    if not isinstance(fields, Mapping):
        raise UsageError(f'functions: {given!r:.80} is no function: write {{"name": "f", "parameters": {{…}}}}')
    taken = cast("Mapping[str, Any]", fields)
    kept = {key: _clean(key, taken[key]) for key in taken if key != "strict" and taken[key] is not None}
    function = Function(**kept)
    if not is_name(function.name):
        raise UsageError(f"functions: {function.name!r:.80} is no name of a function")
    return function


def _clean(name: object, value: object) -> Any:
    try:
        return json_value(value)
    except ValueError as error:
        raise UsageError(f"functions: {name}: {error}") from None


def checked(text: object, options: Mapping[str, object]) -> str:
    """Return the text of a request as it may be written down. Raises `UsageError` for options that are not known."""
    if not isinstance(text, str):
        raise UsageError(
            f"a request is a text, and this is a {type(text).__name__}: give a conversation as messages=[…]"
        )
    kinds.known("a request", options, Options.__annotations__)
    if (policies := options.get("policies")) is not None:
        kinds.iterable("policies", policies, f"policies=[{policies if isinstance(policies, str) else 'fifo'!r}]")
    if (tools := options.get("tools")) is not None:
        kinds.iterable("tools", tools, "tools=[function]")
    return writable(text)


def plan_of(plan: Plan, brief: Brief) -> Plan:
    """Return a plan of the caller's as it is submitted: with what the tools and the request say of its steps."""
    trust(plan)
    return revised(plan, brief)

"""What goes wrong, in OpenAI's form: a status, and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from plait.core.errors import (
    ConfigError,
    ContextOverflow,
    DependencyFailed,
    EngineError,
    NotAllowed,
    NoWorker,
    Overloaded,
    PlaitError,
    PlannerError,
    Rejected,
    ToolError,
    UsageError,
    WorkerLost,
)
from plait.core.messages import explain, first_of_each, json_path
from plait.core.result import Failure
from plait.core.values import writable

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_CODES = {401: "invalid_api_key", 403: "not_allowed", 404: "not_found", 409: "conflict", 429: "rate_limit_exceeded"}
"""Of errors that have no code of their own."""
RETRY_AFTER_S = 5
"""Seconds after which a request that met trouble of the server may be sent again."""
_UPSTREAM = {
    NoWorker.__name__: "no upstream answers for this model",
    WorkerLost.__name__: "the connection to the model's server broke",
    Overloaded.__name__: "the model's server is overloaded",
    EngineError.__name__: "the model's server failed",
}
"""What clients read of an upstream's failure. The failure's own message may have addresses and is only in the log."""
_ADDRESS = re.compile(r"https?://[^\s'\"<>]*[^\s'\"<>.,:;)]")


class ApiError(Exception):
    """An answer that is an error. `retry`: whether to send the same request again may help; clients of OpenAI's heed
    it (`x-should-retry`)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status: int
        self.message: str
        self.code: str
        self.param: str | None
        self.status, self.message, self.code, self.param = status, writable(message), code or _code(status), param
        self.headers: dict[str, str] = dict(headers or {})
        if retry is not None:
            self.headers["x-should-retry"] = "true" if retry else "false"

    @property
    def type(self) -> str:
        """The kind of error, as OpenAI calls it."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """Return the form."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the answer to send."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def _code(status: int) -> str:
    return _CODES.get(status, "invalid_value" if status < 500 else "server_error")


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the error (400) for an invalid request."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    """Return the refusal of a parameter that is good OpenAI and cannot be honoured here."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def not_found(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error (404) for an object that does not exist or belongs to another tenant."""
    return ApiError(404, message, param=param, code=code)


def unavailable(message: str = "the server cannot answer this at the moment") -> ApiError:
    """Return the error (503) for a problem of the operator, whose cause the log has."""
    return ApiError(503, f"{message}: send the request again in {RETRY_AFTER_S} s", code="server_unavailable",
                    retry=True, headers={"retry-after": str(RETRY_AFTER_S)})  # fmt: skip


def of_error(error: Exception) -> ApiError:
    """Return the answer to an exception that a request has met with."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _of_validation(error)
    if isinstance(error, ConfigError):  # a problem of the operator; its message has paths
        return unavailable()
    if isinstance(error, NotAllowed):
        return ApiError(403, str(error), param=error.param or None, code=error.code)
    if isinstance(error, UsageError):
        return invalid(str(error), error.param or None, error.code)
    if isinstance(error, Overloaded):
        headers = {"retry-after": str(RETRY_AFTER_S if error.wait is None else max(1, math.ceil(error.wait)))}
        return ApiError(503, str(error), code=error.code, retry=True, headers=headers)
    if type(error) is PlannerError and isinstance(error.__cause__, PlaitError | None):  # else a planner broke
        return invalid(str(error), code=error.code)
    if isinstance(error, PlaitError):
        return of_failure(Failure(kind=type(error).__name__, message=str(error), retryable=error.retryable))
    return ApiError(500, "internal error of the server; see its log", code="internal_error", retry=False)


def _of_validation(error: ValidationError) -> ApiError:
    detail = first_of_each(error)[0]
    subject = json_path(detail["loc"]) or "the body"
    if detail["type"] == "extra_forbidden":
        return invalid(f"unknown parameter: {subject!r}", param=subject, code="unknown_parameter")
    code = "missing_required_parameter" if detail["type"] == "missing" else "invalid_value"
    return invalid(explain(subject, detail), param=subject, code=code)


def of_failure(failure: Failure, causes: Iterable[Failure] = ()) -> ApiError:
    """Return the answer for a run that ended without a value; `causes`: what its steps failed of by themselves."""
    kinds = {cause.kind for cause in causes} if failure.kind == DependencyFailed.__name__ else set[str]()
    kind = kinds.pop() if len(kinds) == 1 else failure.kind
    again = failure.retryable or failure.lost or kind in _UPSTREAM.keys() - {EngineError.__name__}
    if (known := _UPSTREAM.get(kind)) is not None:
        unanswered = ApiError(500, f"{known}; this server's log has the reason", code=failure.code, retry=False)
        return unavailable(known) if again else unanswered
    message = failure.message if kind == ToolError.__name__ else _ADDRESS.sub("the upstream", failure.message)
    status = 503 if again else 400 if kind in (Rejected.__name__, ContextOverflow.__name__) else 500
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return ApiError(status, f"{message} ({failure.kind})", code=failure.code, retry=again, headers=headers)

"""Requests about tokens, forwarded unchanged to one upstream or engine: prompts of ids, prompts' log-probabilities.

Evaluation harnesses and RL loops want the tokens of one model call, which a planner's answer does not have. Such a
request makes no run: it has no journal and is not retried. The tenant's rights, rates and limits hold as for a run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.core.interfaces import offer
from plait.core.ops import Plugin
from plait.core.result import Failure, Usage

from .bodies import TOKEN_FIELDS, Body, ServedStrategy
from .completions import CompletionBody
from .errors import ApiError, of_failure, unsupported
from .http import read, unless_disconnected
from .service import Service
from .tenants import User
from .token_answers import write_completion

_PASSED = TOKEN_FIELDS | frozenset((
    "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
    "seed", "stop", "echo", "logprobs", "top_logprobs", "logit_bias", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "tools", "tool_choice", "response_format", "structured_outputs", "chat_template_kwargs",
    "reasoning_effort",
))  # fmt: skip
"""Fields that the upstream gets, with those that the ledger passes on."""
_TOKENIZER_FIELDS = frozenset((
    "prompt", "messages", "tools", "tokens", "add_special_tokens", "add_generation_prompt",
    "continue_final_message", "return_token_strs", "chat_template_kwargs",
))  # fmt: skip
_MISSING = "an engine or an upstream (`plait serve --upstream`)"
TOKENIZER_PATHS = ("/tokenize", "/detokenize")


class TokenizerBody(BaseModel):
    """The body of `/tokenize` and `/detokenize`: the fields of vLLM."""

    model_config = ConfigDict(extra="allow")
    model: str = ""


class TokenRequests:
    """Passes requests about tokens on."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def takes(self, body: Body, user: User) -> bool:
        """Return whether a request that asks for tokens is passed on. Raises `ApiError` for one that only an upstream
        can answer, if its planner is not `single` or no upstream has its model."""
        strategy = self._service.strategy(body.model, user)
        planner = strategy.planner or self._service.orchestrator.config.planner
        extra = body.plait.model_fields_set - {"steps"}
        is_one_call = planner == Plugin(name="single") and not strategy.policies and not extra
        must = isinstance(body, CompletionBody) and body.needs_tokens
        if is_one_call and self._upstreams(strategy.model, () if must else _names(_given(body))):
            user.may_plan(planner)
            return True
        if not isinstance(body, CompletionBody) or not body.needs_tokens:
            return False
        what = "the log-probabilities of a prompt need" if body.echo else "token ids as a prompt need"
        missing = _MISSING if is_one_call else "one model call: ask plait/single@MODEL"
        raise unsupported("logprobs" if body.echo else "prompt", f"{what} {missing}")

    async def complete(self, request: Request, path: str, body: Body, user: User) -> Response:
        """Answer a completion by the upstream's own answer."""
        if body.stream:
            raise unsupported("stream", "answers with tokens are not streamed: leave `stream` out")
        service, strategy = self._service, self._service.strategy(body.model, user)
        limits, allowed = service.limits(user), user.rights(strategy.model).extra_body
        given = _given(body)
        passed = body.upstream_fields(service.settings.extra_body)
        names = _PASSED | {name for name in passed if allowed is None or name in allowed}
        request.scope["plait.ignored"] = tuple(given.keys() - names - {"model", "stream", "plait"})
        fields = {name: value for name, value in given.items() if name in names}
        if isinstance(body, CompletionBody):
            fields.setdefault("max_tokens", body.token_limit)
        if limits.tokens is not None:
            own = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
            share = max(1, limits.tokens // ((fields.get("n") or 1) * max(1, len(getattr(body, "all_prompts", ())))))
            fields[own] = min(share, given.get(own) if given.get(own) is not None else share)
        if user.salt:
            service.health.check_salt(user.salt)
            fields["cache_salt"] = user.salt
        return await self._send(request, path, fields, strategy, user)

    async def tokenize(self, request: Request, user: User) -> Response:
        """Answer `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`."""
        service = self._service
        if request.method == "GET":
            return await self._send(request, request.url.path, {}, ServedStrategy(), user)
        given = await read(request, TokenizerBody, service.settings)
        strategy = service.strategy(given.model, user) if given.model else ServedStrategy()
        fields = {name: value for name, value in (given.model_extra or {}).items() if name in _TOKENIZER_FIELDS}
        return await self._send(request, request.url.path, fields, strategy, user)

    def _upstreams(self, model: str | None, names: Iterable[str] = ()) -> list[Any]:
        """Return the workers that take requests with some fields as they are: those with a model, or with that of the
        first."""
        capable = [worker for worker in self._service.workers if getattr(worker, "forward", None) is not None
                   and (getattr(worker, "token_fields", None) or frozenset(names)).issuperset(names)]  # fmt: skip
        if model is None:
            return [worker for worker in capable if offer(worker).models == offer(capable[0]).models]
        return [worker for worker in capable if model in offer(worker).models]

    async def _send(
        self, request: Request, path: str, fields: dict[str, Any], strategy: ServedStrategy, user: User
    ) -> Response:
        """Pass a request on: a GET if it has no fields."""
        service, model, seconds = self._service, strategy.model, self._service.limits(user).seconds
        if not (upstreams := self._upstreams(model, _names(fields)) or self._upstreams(model)):
            raise unsupported("model", f"this address needs {_MISSING} with the model")
        if not _are_plain(fields.get("messages") or []):
            raise unsupported("messages", "answers with tokens are for messages whose `content` is a string")
        service.check_places(user)
        await service.count_request(user)
        worker = random.choice(upstreams)
        if model is not None:
            fields["model"] = model
        with user.admitted():
            sent = asyncio.ensure_future(worker.forward(path, fields))
            try:
                async with asyncio.timeout(seconds):
                    answer = await unless_disconnected(request.receive, sent, sent.cancel)
            except TimeoutError:
                raise ApiError(503, f"the upstream did not answer within {seconds:g} s", retry=True) from None
        if answer is None:
            return Response(status_code=499)
        if isinstance(answer, Failure):
            raise of_failure(answer)
        if isinstance(answer, list):  # an engine's
            fields.setdefault("model", worker.models[0])
            answer = await asyncio.to_thread(write_completion, fields, answer, worker.decode)
        usage = _read_usage(answer)
        price = worker.prices.get(model or "") or worker.prices.get("")
        service.charge(user, usage.completion, 0.0 if price is None else price.of(usage))
        return JSONResponse(answer)


def _read_usage(answer: Mapping[str, Any]) -> Usage:
    used = answer.get("usage") or {}
    return Usage(prompt=used.get("prompt_tokens") or 0, completion=used.get("completion_tokens") or 0)


def _given(body: Body) -> dict[str, Any]:
    return body.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _names(fields: Mapping[str, Any]) -> set[str]:
    """Return the fields that ask for something."""
    return {name for name, value in fields.items() if name in _PASSED and value not in (None, [], {})}


def _are_plain(messages: object) -> bool:
    """Return whether messages are objects without parts."""
    return isinstance(messages, list) and not any(
        not isinstance(message, dict) or isinstance(message.get("content"), list) for message in messages
    )

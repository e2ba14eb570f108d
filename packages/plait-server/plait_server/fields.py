"""The ledger of fields: how the server treats each field of OpenAI's, vLLM's and SGLang's protocols.

A field is *honoured* (a body reads it), *passed on* to the upstream as it is, *ignored* and named in the header
`x-plait-ignored`, or *refused*. `docs/reference/fields.md` is generated from this table, and a test compares it with
the installed packages, so that no field of a new release is missing. A field without a row is ignored and named;
`strict = true` in `[serve]` refuses such fields, and ignored fields that OpenAI does not have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from plait.core.request import Request
from plait.core.rights import Rights

Support = Literal["honoured", "passed on", "ignored", "refused"]


class Row(NamedTuple):
    """How a field is treated, and why, or what it does here."""

    support: Support
    note: str = ""


_TABLE: Mapping[Support, Mapping[str, str]] = {
    "honoured": {
        "plait": "plait's own: planner, policies, budget, a plan, the branches",
        "model": "also names planner and policies (`plait/sample:n=4@qwen3`), or an alias",
        "messages input stream top_k min_p seed n stop frequency_penalty presence_penalty repetition_penalty "
        "logit_bias parallel_tool_calls reasoning_effort include_reasoning background previous_response_id "
        "responses.store system prompt": "",
        "instructions agui.context": "a system message before the others",
        "stream_options": "`include_usage`",
        "temperature top_p max_tokens": "of the calls that answer",
        "max_completion_tokens max_output_tokens": "the same as `max_tokens`",
        "logprobs": "where the answer is the text of one model call",
        "top_logprobs": "with `logprobs`",
        "response_format": "enforced, parsed, and repaired once",
        "text": "`text.format`, as `response_format`",
        "structured_outputs": "`json` as `response_format`; `regex`, `choice`, `grammar` for the calls that answer",
        "guided_json json_schema": "the same as `structured_outputs.json`",
        "guided_regex regex": "the same as `structured_outputs.regex`",
        "guided_choice": "the same as `structured_outputs.choice`",
        "guided_grammar ebnf": "the same as `structured_outputs.grammar`",
        "tools": "functions, and custom tools; the client runs them",
        "tool_choice": "`none`, `auto`, `required`, a tool, `allowed_tools`",
        "reasoning": "`reasoning.effort`",
        "thinking_token_budget": "`thinking_tokens` of the calls that answer",
        "chat_template_kwargs": "values for the template, not settings of its renderer",
        "continue_final_message": "the answer continues the last assistant message",
        "add_generation_prompt": "with `continue_final_message`",
        "metadata": "kept with the run",
        "session_id": "the session of the run; else a header such as `X-Session-ID`, else `prompt_cache_key`, else the "
        "conversation's beginning; sent on as the session of the first trajectory",
        "cache_salt": "ignored with tenants: the server then sets it",
        "priority": "of all steps of the run; with tenants ignored",
        "chat.store": "stores the completion, so that it can be read and listed",
        "include": "`message.output_text.logprobs`",
        "completions.echo": "not together with `logprobs`",
        "completions.best_of": "the same as `n`: plait/sample:n=… chooses",
        "stop_sequences": "the response does not report which of them matched",
        "messages.thinking": "`budget_tokens` is a part of `max_tokens`",
        "output_config": "`format` as `response_format`, `effort` as `reasoning_effort`",
        "agui.thread_id": "kept with the run, as its session",
        "agui.run_id": "in the events; the run has an id of its own",
        "agui.resume": "answers the open questions of a run's tools",
    },
    "passed on": {
        "min_tokens ignore_eos bad_words stop_token_ids stop_regex allowed_token_ids "
        "include_stop_str_in_output no_stop_trim spaces_between_special_tokens truncate_prompt_tokens "
        "truncation_side add_special_tokens repetition_detection watermark watermarking "
        "custom_logit_processor custom_params": "of all model calls of the run",
        "documents": "for the chat template",
        "chat_template media_io_kwargs mm_processor_kwargs images_config video_config max_dynamic_patch "
        "min_dynamic_patch use_audio_in_video lora_path task thinking verbosity agent_hints": "",
        "extra_key": "of cached prefixes, with SGLang",
        "ngram_corpus_id": "of speculated tokens, with SGLang",
        "vllm_xargs": "merged with the hints that plait sends",
        "nvext": "merged with the hints that plait sends (NVIDIA Dynamo)",
    },
    "ignored": {
        "user safety_identifier": "the API key identifies the caller; passed on if `extra_body` in `[serve]` names it",
        "service_tier speed": "the server has one service level",
        "moderation": "the server does not moderate",
        "prediction": "it only changes the speed",
        "prompt_cache_key": "the session of a request without another; passed on if `extra_body` in `[serve]` names it",
        "prompt_cache_options cache_control": "steps go where their prefix is cached",
        "prompt_cache_retention": "the engine decides",
        "store": "only chat completions and responses are kept",
        "inference_geo": "the server has no regions",
        "diagnostics user_profile_id workspace_id": "Anthropic's own",
        "max_tool_calls": "the server calls no tools for a client",
        "truncation context_management": "the server never shortens a conversation",
        "access_programs": "OpenAI's own",
        "background_options": "background responses are stored like all others",
        "agui.state": "a run has no frontend state",
        "agui.protocol_version": "events are those of version 1.0",
        "agui.parent_run_id": "runs have no parents",
        "separate_reasoning": "reasoning is always a field of its own",
        "stream_reasoning": "reasoning is streamed as it comes",
        "stream_interval": "text is streamed as it comes",
        "skip_special_tokens": "answers never contain special tokens",
        "length_penalty": "of beam search",
        "request_id rid": "the run's id is the answer's",
        "session_params kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room":
            "concerns one engine request, and a run makes several",
        "data_parallel_rank routed_dp_rank disagg_prefill_dp_rank": "plait places the steps",
        "custom_labels": "of SGLang's metrics",
        "prompt_logprobs logprob_token_ids sampling_logprobs_mode return_token_ids return_tokens_as_token_ids "
        "return_token_offsets return_prompt_text return_prompt_token_ids return_mm_kwargs "
        "return_hidden_states return_meta_info return_routed_experts return_sampling_mask "
        "return_weight_versions return_cached_tokens_details return_spec_tokens_details "
        "return_input_ids_in_sglext return_output_ids_in_sglext return_flat_raw_output_top_logprobs "
        "return_flat_raw_top_logprobs_b64 routed_experts_prompt_start routed_experts_start_len "
        "enable_response_messages": "the response format has no field for it",
    },
    "refused": {
        "modalities audio": "only text is answered: leave `modalities` and `audio` out",
        "functions function_call": "this is the old form: give `tools` and `tool_choice`",
        "web_search_options": "the server searches nothing: leave it out",
        "conversation": "conversations are not kept: give `previous_response_id`",
        "responses.prompt": "prompts are not kept: give the text itself",
        "image": "only text is answered: leave it out",
        "use_beam_search": "ask a planner such as plait/tree for a search",
        "container": "the server runs no code for a client: leave it out",
        "mcp_servers": "the server calls no tools for a client: leave it out",
        "best_of": "plait/sample:n=… samples and chooses",
        "echo": "the question is not repeated: leave it out",
        "suffix": "text is only written on: leave it out",
        "prompt_embeds input_ids mm_payload": "the question is read as text: give it so",
        "previous_input_messages": "give `previous_response_id`, or the messages as `input`",
    },
}  # fmt: skip
"""Field names, separated by spaces, and what they do here or why they have no effect."""
LEDGER: Mapping[str, Row] = {
    name: Row(support, note)
    for support, notes in _TABLE.items()
    for names, note in notes.items()
    for name in names.split()
}
"""By name, or by `ENDPOINT.name` where a field has another meaning at one endpoint."""
_NEUTRAL: Mapping[str, JsonValue] = {
    "best_of": 1,
    "modalities": ["text"],
    "truncation": "disabled",
    "length_penalty": 1.0,
    "service_tier": "auto",
    "separate_reasoning": True,
    "stream_reasoning": True,
    "skip_special_tokens": True,
}
"""Values that have no effect, because they are the defaults."""
FORWARDED = frozenset(("user", "safety_identifier", "prompt_cache_key"))
"""Ignored fields that go to the upstream if the setting `extra_body` names them: gateways account and route by them."""
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
MAX_NAMES = 20


def find_row(name: str, endpoint: str = "") -> Row | None:
    """Return the row of a field; `None` for an unknown field.

    >>> find_row("store", "responses").support, find_row("store").support, find_row("nonsense")
    ('honoured', 'ignored', None)
    """
    return LEDGER.get(f"{endpoint}.{name}") or LEDGER.get(name)


def is_set(name: str, value: object) -> bool:
    """Return whether a field has an effect: it is not empty and not the default."""
    return value not in (None, False, [], {}, "", 0) and value != _NEUTRAL.get(name)


def fit_in_header(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that a header can hold; the last entry counts those that are invalid or too many."""
    known = [*dict.fromkeys(name for name in names)]
    kept = [name for name in known if _NAME.fullmatch(name)][:MAX_NAMES]
    return (*kept, *([f"{len(known) - len(kept)} more"] if len(kept) < len(known) else ()))


def apply_rights(
    request: Request, passed: Mapping[str, Any], rights: Rights, takes: Iterable[Collection[str] | None]
) -> tuple[Request, tuple[str, ...]]:
    """Return a request with the upstream fields that its sender may set, and the names of the fields without effect.

    Args:
        request: the request of the body.
        passed: fields of the body for the upstream.
        rights: of the sender. Fields of the body that they do not allow are dropped, because clients often send them
            without the user's knowledge; those of a plan or an option are refused elsewhere.
        takes: the fields that each worker accepts; `None`: any.
    """
    allowed = [names for names in (rights.extra_body, *takes) if names is not None]
    sent = {name: value for name, value in passed.items() if all(name in names for names in allowed)}
    update: dict[str, Any] = {}
    if sent:
        own = request.generation
        update["generation"] = own.model_copy(update={"extra_body": {**sent, **own.extra_body}})
    unused = [name for name in passed if name not in sent]
    if rights.apart:
        unused += _clear_server_fields(request, update)
    return (request.model_copy(update=update) if update else request), tuple(unused)


def _clear_server_fields(request: Request, update: dict[str, Any]) -> Iterator[str]:
    for name, field, nothing in (("cache_salt", "salt", ""), ("priority", "priority", 0)):
        if getattr(request, field) != nothing:
            update[field] = nothing
            yield name

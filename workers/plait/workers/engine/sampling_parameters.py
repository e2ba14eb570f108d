"""Translate a think step's settings to vLLM's, and report settings that a release of vLLM lacks.

Callers pass vLLM's classes.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from plait.core.errors import EngineError
from plait.core.messages import did_you_mean
from plait.core.sampling import Sampling, StructuredOutput, resolve

from .._shared.arithmetic_codes import CODE
from .._shared.function_calls import specified
from .._shared.prompt import Stops

RELEASE = "0.32"
"""The release of vLLM that has all that is asked for here."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM makes room for."""


EXTRA = ("min_tokens", "ignore_eos", "bad_words", "stop_token_ids", "allowed_token_ids")
"""Fields of `Sampling.extra_body` that are vLLM's own settings of sampling."""
_NEUTRAL = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Fields that vLLM names alike, each with the value that changes nothing: it is not sent."""


class Abilities:
    """The settings that the vLLM at hand takes, found out from its signatures."""

    def __init__(self, version: str, sampling: Any, forms: Any, kinds: Any) -> None:
        """Inspect `SamplingParams`, `StructuredOutputsParams` (or `None`) and `RequestOutputKind`."""
        self.version = version
        self.arithmetic = False
        """Whether the engine has the logits processor of arithmetic sampling."""
        self._sampling, self._forms, self._kinds = sampling, forms, kinds
        self._fields = _parameters(sampling)
        self.mutes = "detokenize" in self._fields
        self._own: dict[str, Any] = {"skip_clone": True} if "skip_clone" in self._fields else {}

    def params(
        self,
        sampling: Sampling,
        stops: Stops,
        max_tokens: int,
        deltas: bool,
        mute: bool = False,
        labels: Sequence[int] = (),
        calls: str = "",
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Return vLLM's form of sampling settings that are `settled`; `mute`: it need not make text of the
        ids. `labels`: the token ids of the step's labels. `calls`: the form of a turn that must or may not call
        functions. `extra`: fields of `EXTRA`.

        Raises `EngineError` for a setting that this vLLM does not know, and whatever vLLM raises for a value that it
        does not accept.
        """
        fields: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "stop": list(stops.texts),
            "stop_token_ids": list(dict.fromkeys((*stops.ids, *sampling.stop_ids))),
            "include_stop_str_in_output": sampling.keep_stop,
            "skip_special_tokens": False,
            "output_kind": self._kinds.DELTA if deltas else self._kinds.FINAL_ONLY,
        }
        fields |= {"detokenize": False} if mute else {}
        fields |= {name: value for name, unused in _NEUTRAL.items()
                   if (value := getattr(sampling, name)) not in (None, unused)}  # fmt: skip
        if sampling.logit_bias:
            fields["logit_bias"] = {int(token): bias for token, bias in sampling.logit_bias.items()}
        if sampling.logprobs or sampling.top_logprobs is not None:
            # 0 is how vLLM is asked for the sampled token alone
            most = 0 if sampling.logprobs == 1 else sampling.logprobs
            fields["logprobs"] = most if most == -1 else max(most, sampling.top_logprobs or 0)
        if sampling.arithmetic is not None and sampling.draws and not labels:
            if not self.arithmetic:
                raise EngineError(
                    "this engine cannot sample by arithmetic: start it with arithmetic=true (vLLM 0.32 or later), or "
                    "leave `arithmetic` out of the planner's options"
                )
            fields["extra_args"] = {CODE: sampling.arithmetic}
        if labels:
            # The whole vocabulary's: vLLM's own `logprob_token_ids` blanks those of all other requests of its step.
            fields |= {"logprobs": -1, "allowed_token_ids": list(labels), "temperature": 0.0}
        fields |= self._structured_outputs(sampling.structured, calls)
        for name, value in extra.items():
            fields[name] = [*fields[name], *value] if name == "stop_token_ids" else value
        for name in fields:
            self.need(name, name in self._fields)
        return self._sampling(**fields, **self._own)

    def make_raw(self, **fields: Any) -> Any:
        """Return vLLM's form of its own fields; its output comes whole, at the end."""
        return self._sampling(**fields, output_kind=self._kinds.FINAL_ONLY)

    def _structured_outputs(self, form: StructuredOutput | None, calls: str) -> dict[str, Any]:
        forms, fields = self._forms or dict, dict[str, Any]()
        if form is not None:
            known = form.kind in _parameters(forms)
            self.need(f"structured_outputs.{form.kind}", known or not form.required)
            if known:
                fields["structured_outputs"] = forms(**{form.kind: specified(form)})
        if calls and "structural_tag" in _parameters(forms):
            fields["structured_outputs"] = forms(structural_tag=calls)
        return fields

    def need(self, option: str, there: bool) -> None:
        """Raise `EngineError` for an option that this vLLM does not have."""
        if not there:
            raise EngineError(
                f"vLLM {self.version} does not take the option {option!r}: use release {RELEASE}, or do without it"
            )


def settled(sampling: Sampling, generation: Mapping[str, Any]) -> Sampling:
    """Return sampling settings with what they leave to the model as its `generation_config` has it. A model that does
    not say that it samples is greedy, as in transformers."""
    model: dict[str, Any] = {"top_p": 1.0, "top_k": 0}
    if sampling.temperature is None:
        samples = generation.get("do_sample", generation.get("temperature") is not None)
        model["temperature"] = generation.get("temperature", 1.0) if samples else 0.0
        model |= {name: generation[name] for name in ("top_p", "top_k") if name in generation}
    update = resolve(sampling, model=model)
    return sampling.model_copy(update=update | ({} if update["temperature"] else {"seed": None}))


def engine_arguments(wanted: Mapping[str, Any], known: Iterable[str], asked: Mapping[str, str], version: str) -> Any:
    """Return those arguments of the engine that this vLLM knows. `asked` are those that a user may have set, with the
    option's name; one of them that is set and not known is an `EngineError`."""
    there = set(known)
    for key, option in asked.items():
        if wanted.get(key) is not None and key not in there:
            raise EngineError(
                f"the option {option!r} needs vLLM's argument {key!r}, which release {version} does not have "
                f"({RELEASE} has all that plait uses){did_you_mean(key, there)}"
            )
    return {key: value for key, value in wanted.items() if key in there and value is not None}


def lora_rank(adapters: Mapping[str, str]) -> int | None:
    """Return the adapter rank to allocate, `None` without adapters. Raises `EngineError` for another kind of folder."""
    ranks: list[int] = []
    for name, path in adapters.items():
        config = Path(path).expanduser() / "adapter_config.json"
        remedy = "give a folder with adapter_config.json and adapter_model.safetensors, as `peft` writes it"
        try:
            settings = json.loads(config.read_text())
        except OSError as error:
            raise EngineError(
                f"the LoRA adapter {name!r} cannot be read ({config}: {error.strerror}): {remedy}"
            ) from None
        except ValueError:
            raise EngineError(f"the LoRA adapter {name!r} cannot be read ({config} is not JSON): {remedy}") from None
        rank = settings.get("r") if isinstance(settings, dict) else None
        if not isinstance(rank, int) or not 0 < rank <= RANKS[-1]:
            raise EngineError(f"the LoRA adapter {name!r} has the rank {rank!r}: it must be 1 to {RANKS[-1]}")
        ranks.append(rank)
    return next((allowed for allowed in RANKS if allowed >= max(ranks)), None) if ranks else None


def _parameters(callable_: Any) -> frozenset[str]:
    return frozenset(inspect.signature(callable_).parameters) if callable_ is not dict else frozenset()

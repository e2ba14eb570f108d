"""vLLM itself: built, stepped and freed by the engine's thread. Only this file and `engine_loader.py` import vllm."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import ContextOverflow, CutInThoughts, EngineError, Rejected, WorkerLost
from plait.core.events import Job
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, as_failure
from plait.core.values import first_stop, split_reasoning

from .._shared.batch_streams import Reporter, TokenBatch
from .._shared.confidence import ConfidenceTrace, measure
from .._shared.function_calls import call_form
from .._shared.prompt import CLOSE, OPEN, Prompter, most, rendered, thinks
from .core_process import (
    COUNTERS,
    CoreProcess,
    RequestProgress,
    count_forms,
    first_line,
    measure_cache,
    pack_head,
    prefill_field,
    seen,
)
from .engine_loader import has_own_process, load, prepare
from .options import EngineOptions
from .requests import EngineOutputs, EngineRequest, ended, take_up
from .sampling_parameters import EXTRA, Abilities, settled

log = logging.getLogger("plait.engine")

WRITTEN = {"json": '{"a": [1, true]}', "calls": '<tool_call>{"a": 1}</tool_call>', "grammar": '1. f(a="b", c=$1)\n'}
"""What a tokenizer must be able to write, as an example, before a model is held to forms of a kind."""
KEEPS = "vLLM cannot keep this model to it"
DEAD = "EngineDeadError"
"""vLLM's error for an EngineCore whose process has ended."""
REMEMBERED = 1000
"""Forms that the engine is known not to support."""
REPORTS = 16
"""Tokens between two reports of a request that a budget counts."""
ALIVE_STEPS = 256
"""Engine steps after which a request that does not stream reports its tokens too: an attempt without reports would
count as lost after some time."""


def events_address(folder: Path) -> str:
    """Return the address at which an engine publishes the events of its prefix cache."""
    return f"ipc://{folder}/events"


class Core:
    """vLLM's engine and the requests that are in it."""

    _place = threading.Lock()
    """Held by the engine that shares this process. vLLM's groups are the process's: one engine that ends breaks
    another."""

    def __init__(self, spec: EngineOptions, folder: Path, report_end: Callable[[], None]) -> None:
        """Load the model; raises `EngineError`, or whatever vLLM raises. `folder` is private to the engine.
        `report_end` is called from a thread when EngineCore's own process has ended."""
        self.engine: Any = None
        self.process: CoreProcess | None = None
        """The process of EngineCore, if that is its own."""
        self.on_prompt_end: Callable[[int, Sequence[int], str, str], None] | None = None
        """Takes the attempt, prompt, adapter and salt of requests that have ended, where the cache is followed."""
        self.running: dict[str, EngineRequest] = {}
        self.counts = {"steps": 0, "generated": 0, "prompt": 0, "cached": 0, "queries": 0, "hits": 0}
        self._counters = np.zeros(len(COUNTERS), np.int64)
        self._inner: dict[str, EngineRequest] = {}
        """The requests that are running by vLLM's names for them."""
        self._checkpoint = spec.checkpoint
        self._processed = spec.processed_logprobs
        self._unkept: set[tuple[str, str]] = set()
        """Forms that vLLM could not keep the model to: not tried again."""
        args = prepare(spec)
        if has_own_process(spec):
            self.process = CoreProcess(folder)
            self._counters = self.process.counters
        # vLLM keeps its distributed state in the process: a second engine would take it from the first.
        elif not Core._place.acquire(blocking=False):
            raise EngineError(
                "this process already has an engine that shares it: close that one first, or start this one with "
                "process=own"
            )
        try:
            self._build(spec, args, folder, report_end)
        except BaseException:
            self.close()
            raise

    def _build(self, spec: EngineOptions, args: dict[str, Any], folder: Path, report_end: Callable[[], None]) -> None:
        if spec.kv_events:
            address = events_address(folder)
            args["kv_events_config"] = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": address}
        vllm, self.engine = load(args, spec.engine_args, self.process)
        if self.process is not None:
            self.process.follow(self.engine, report_end)
        from vllm import sampling_params as settings

        engine = self.engine
        forms = getattr(settings, "StructuredOutputsParams", None)
        self.able = Abilities(vllm.__version__, settings.SamplingParams, forms, settings.RequestOutputKind)
        config = engine.vllm_config
        self.able.arithmetic = bool(getattr(config.model_config, "logits_processors", None))
        self.max_model_len = int(config.model_config.max_model_len)
        self.block: int = config.cache_config.block_size
        self.blocks: int = (getattr(config.cache_config, "num_gpu_blocks", None) or 1) - 1  # one holds nothing
        self._states: dict[str, Any] | None = getattr(engine.output_processor, "request_states", None)
        self.peeks = self._states is not None
        """Whether a running request's output so far can be read; else every request reports every step."""
        # Otherwise the priorities of requests would be ignored without a word.
        if getattr(config.scheduler_config, "policy", None) != "priority":
            raise EngineError(f"vLLM {vllm.__version__} did not take the priority policy: use another release of it")
        self.prompter = Prompter(engine.get_tokenizer())
        if rewrites := self.prompter.rewrites():
            log.warning("%s: a continued conversation may be rendered again: %s", spec.name, rewrites)
        if lost := self.prompter.roles():
            remedy = "ask one question at a time, or put a template with roles into the folder (chat_template.jinja)"
            log.warning("%s: the model's chat template does not support conversations: %s; %s", spec.name, lost, remedy)
        generation: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            # Not every release has it, nor every model folder the file: then a request says all of its sampling itself.
            generation = config.model_config.try_get_generation_config() or {}
        self.generation = generation
        """The model's own settings of sampling."""
        self.ends = _end_ids(generation, self.prompter)
        adding = inspect.signature(engine.add_request).parameters
        self.able.need("priority", "priority" in adding)
        self._tokens_input = vllm.inputs.tokens_input
        self._salted = "cache_salt" in inspect.signature(self._tokens_input).parameters
        self._taps = self._tap()
        self._inner_core: Any = getattr(engine.engine_core, "engine_core", None)
        count_forms(self._inner_core, self._counters[:2])
        self.loras = self._load(spec.lora, adding) if spec.lora else {}
        if self.process is not None:
            self.able.need("process=own", self._taps)
            gc.collect()
            gc.freeze()  # a full collection over all that vLLM's import brings takes .3 s; EngineCore freezes its own

    def _load(self, adapters: dict[str, str], adding: Any) -> dict[str, Any]:
        """Load the adapters now: one that cannot be read would else break the engine at its first request."""
        from vllm.lora.request import LoRARequest

        self.able.need("lora_request", "lora_request" in adding)
        loaded: dict[str, Any] = {}
        for number, (name, path) in enumerate(adapters.items(), start=1):
            request = loaded[name] = LoRARequest(name, number, str(path))
            try:
                fine = self.engine.add_lora(request)
            except Exception as error:
                raise EngineError(
                    f"the LoRA adapter {name!r} at {path} cannot be loaded ({first_line(error)}): is it one of "
                    "this model?"
                ) from error
            if not fine:
                raise EngineError(f"the LoRA adapter {name!r} at {path} cannot be loaded: is it one of this model?")
        return loaded

    # -- requests ----------------------------------------------------------------------------------------------------

    def order(self, job: Job, think: ModelCall, key: str, report: Reporter) -> EngineRequest | Result:
        """Return a job as a request, or its result if what was generated of it before has ended it. Not on the
        engine's thread. Raises `EngineError`, and `ValueError` for what vLLM does not accept."""
        sampling = settled(think.sampling, self.generation)
        # Of 1 only the mean over the sampled tokens is wanted, which vLLM's own sum gives without the taps.
        if sampling.logprobs not in (0, 1) or sampling.token_logprobs or sampling.top_logprobs is not None:
            self.able.need("logprobs", self._taps)
        if sampling.labels:
            self.able.need("labels", self._taps)
        if think.salt:
            self.able.need("cache_salt", self._salted)
        if foreign := [name for name in think.sampling.extra_body if name not in EXTRA]:
            names, there = ", ".join(foreign), ", ".join(EXTRA)
            raise Rejected(f"`extra_body` ({names}) is for a server: this engine, in the process itself, takes {there}")
        think = rendered(think, self.prompter.template)
        prompt, anew = self.prompter.prompt(think)
        if not prompt:
            raise Rejected("the prompt has no tokens: give it some text")
        order = EngineRequest(key, report, prompt, sampling, bool(think.stream), priority=job.priority, salt=think.salt)
        order.anew, order.processed = anew, self._processed
        # A turn that begins behind its thoughts has none left to think.
        if think.chat and thinks(self.prompter.template) and CLOSE not in think.begin:
            order.thoughts = most(think)
            # Some templates open the block of thoughts themselves: then the generated text begins inside it.
            order.opened = self.prompter.text(prompt[-16:]).rstrip().endswith(OPEN)
        order.lora = self.loras.get(think.model) if think.model else None
        stops = self.prompter.stops(sampling.stop)
        # vLLM keeps that many characters back, as they may begin a stop text.
        order.buffer = 0 if sampling.keep_stop else max(map(len, stops.texts), default=1) - 1
        if sampling.labels:
            order.labels = self.prompter.labels(sampling.labels)
        order.calls = call_form(think)
        form = order.form
        if form in self._unkept:
            self._do_without(order, KEEPS)
        elif form is not None and not self.prompter.writes(WRITTEN.get(form[0], "")):
            self._do_without(order, "the model's tokenizer has no tokens to write it with")
        sampling = order.sampling
        # A form's state cannot be taken up in its middle, nor are a lost attempt's log-probabilities known: that output
        # starts from the beginning.
        whole = sampling.structured is not None or bool(sampling.labels) or sampling.top_logprobs is not None
        whole = whole or bool(order.calls)
        order.tells = bool(self._checkpoint) and not whole
        if job.generated and not whole:
            take_up(order, job.generated, self.prompter, sampling.stop)
            named = (*stops.ids, *sampling.stop_ids)
            if result := ended(order, self.prompter, self.ends, named, sampling.stop):
                return result
        room = self.max_model_len - len(order.context)
        if room < 1:
            # What a lost attempt has generated fills the context by itself: there is an answer, cut at its length.
            if order.past:
                return order.result("length", order.past, order.earlier)
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens and the model's context holds {self.max_model_len}, output "
                "included: shorten the prompt, or start the engine with a larger max_model_len if the model allows"
            )
        # A stop text that begins in the earlier text has to be looked for in every piece of the new one.
        order.deltas = bool(think.stream) or bool(order.joint) or not self.peeks
        # The engine decodes each token as it comes, between two steps; it has to only where a text may end the output.
        order.mute = not (order.deltas or stops.texts or order.skip) and self.able.mutes
        order.mute = order.mute and self.prompter.decodes_late(order.context)
        limit = min(sampling.max_tokens + order.thoughts - len(order.past), room)
        ids = tuple(order.labels.values())
        order.params = self.able.params(sampling, stops, limit, order.deltas, order.mute, ids, order.calls,
                                         think.sampling.extra_body)  # fmt: skip
        order.trace = ConfidenceTrace.of(sampling)
        order.attempt, order.reports = job.attempt, job.report
        # Of these a checkpoint is their ids alone: all go out as one batch.
        order.bare = order.tells and not (order.deltas or sampling.logprobs)
        return order

    def add(self, order: EngineRequest, news: EngineOutputs) -> None:
        """Give a request to vLLM; one that it rejects fails by itself."""
        extra: dict[str, Any] = {"cache_salt": order.salt} if order.salt else {}
        prompt = self._tokens_input(order.context, **extra)
        lora = {"lora_request": order.lora} if order.lora is not None else {}
        try:
            inner = self.engine.add_request(order.key, prompt, order.params, priority=order.priority, **lora)
        except Exception as error:  # vLLM's own classes change; nothing has been scheduled yet, so the engine is sound
            if type(error).__name__ == DEAD:
                raise
            if self._without_form(order, news):
                return
            refused = Rejected(f"the engine rejected the request: {first_line(error)}")
            news.append((order.stream, as_failure(refused)))
            return
        order.inner = inner if isinstance(inner, str) else order.key
        order.reported_step = self.counts["steps"]
        self.running[order.key] = self._inner[order.inner] = order

    def abort(self, key: str, news: EngineOutputs) -> None:
        """Take a request out of vLLM between two steps: it generates nothing more. Ended ones are ignored."""
        order = self.running.get(key)
        if order is None:
            return
        if (seen := self._seen(order)) is not None:
            order.ids = list(seen.ids)
            order.text = "" if order.mute else order.fresh(seen.text)
            order.cached = seen.cached
        self.engine.abort_request([key])
        order.joint = ""
        self._end(order, news, "abort", None)

    def reload(self, folder: str) -> None:
        """Replace the weights by those of a folder, for a model of the same shape, and clear the prefix cache. Called
        between two steps, without a running request. Raises `EngineError`."""
        reloads = getattr(self.engine, "collective_rpc", None)
        self.able.need("reload_weights", reloads is not None)
        try:
            self.engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
            if self.process is None:
                self.engine.apply_model(pack_head)
            else:  # a function is not sent to another process
                self.engine.engine_core.call_utility("pack_head")
            self.engine.reset_prefix_cache()
        except Exception as error:  # vLLM's own classes change
            raise EngineError(f"the weights of {folder} cannot be loaded: {first_line(error)}") from error

    def step(self, news: EngineOutputs) -> TokenBatch | None:
        """Run one step of vLLM, and add its output; return the checkpoint, if one is due."""
        counts, before = self.counts, self.counts["steps"]
        for output in self.engine.step():
            if (order := self.running.get(output.request_id)) is not None:
                self._receive(order, output, news)
        counts["steps"] += not self._taps
        if counts["steps"] == before:
            return None
        if counts["steps"] % REPORTS == 0:
            self._report_silent(news)
        # A checkpoint reports every request. Between checkpoints, only those with a full window of confidence report.
        due, self._due = self._due, []
        if not self._checkpoint or counts["steps"] % self._checkpoint:
            for order in due:
                if order.key in self.running:
                    self._peek(order, news)
            return None
        return self._account(news)

    def _receive(self, order: EngineRequest, output: Any, news: EngineOutputs) -> None:
        """Add one step's output to a request, and report it."""
        if order.is_raw:
            if output.finished:
                self._forget(order)
                news.append((order.stream, output))
            return
        piece = output.outputs[0]
        order.cached = getattr(output, "num_cached_tokens", 0) or 0
        if order.deltas:
            order.ids += piece.token_ids
            order.text += order.fresh(piece.text)
        else:
            order.ids, order.text = list(piece.token_ids), order.fresh(piece.text)
        # Without the taps tokens are counted here, which misses those of cancelled requests.
        if not self._taps:
            self.counts["generated"] += len(piece.token_ids)
            order.cumulative = getattr(piece, "cumulative_logprob", None) or 0.0
        if order.joint and self._joined(order, output.finished):
            if not output.finished:
                self.engine.abort_request([order.key])
            self._end(order, news, "joined", None)
        elif output.finished:
            self._end(order, news, piece.finish_reason, piece.stop_reason)
        elif order.streams:
            self._tell(order, news, order.ids)

    def _account(self, news: EngineOutputs) -> TokenBatch:
        """Report the progress of all requests that otherwise report only their end."""
        attempts: list[int] = []
        counts: list[int] = []
        ids: list[int] = []
        for order in self.running.values():
            if order.bare and (seen := self._seen(order)) is not None:
                fresh = order.unheard(seen.ids)
                attempts.append(order.attempt)
                counts.append(len(fresh))
                ids += fresh
            elif not order.streams:
                self._peek(order, news)
        return TokenBatch(attempts, counts, ids)

    def _report_silent(self, news: EngineOutputs) -> None:
        """Report the tokens of requests that do not stream: those that a budget counts, and long ones."""
        steps = self.counts["steps"]
        for order in self.running.values():
            is_due = order.reports or steps - order.reported_step >= ALIVE_STEPS
            if is_due and not (order.streams or order.bare):
                order.reported_step = steps
                self._peek(order, news)

    def _peek(self, order: EngineRequest, news: EngineOutputs) -> None:
        """Tell of a request that reports its end only."""
        seen = None if order.deltas else self._seen(order)
        self._tell(order, news, order.ids if seen is None else seen.ids)

    def _tell(self, order: EngineRequest, news: EngineOutputs, ids: Sequence[int]) -> None:
        released: int | None = None
        if order.past and order.buffer and not order.text and (seen := self._seen(order)) is not None:
            # The engine has no new text yet; the earlier text is reported as far as without the interruption.
            released = max(0, len(order.earlier) + len(seen.text) - order.buffer)
        progress = order.progress(ids, released)
        if progress is not None:
            news.append((order.stream, progress))

    def _joined(self, order: EngineRequest, finished: bool) -> bool:
        """Look for a stop text that begins in a request's earlier text and ends in its new one, and cut there."""
        stops = order.sampling.stop
        joined = order.joint + order.text
        stop = first_stop(joined, stops)
        if stop is None or stop[0] >= len(order.joint):
            # A stop text that began in the earlier text would have ended by now: from here on vLLM looks alone.
            if finished or len(order.text) >= max(map(len, stops)) - 1:
                order.joint = ""
            return False
        whole = order.earlier + order.text
        cut = len(whole) - len(joined) + stop[order.sampling.keep_stop]
        order.earlier, order.text, order.joint = whole[:cut], "", ""
        return True

    def _end(self, order: EngineRequest, news: EngineOutputs, reason: str | None, stop: int | str | None) -> None:
        """Remove an ended request, and report its last output."""
        self._forget(order)
        if self.on_prompt_end is not None and not order.is_raw:
            model = order.lora.lora_name if order.lora is not None else ""
            self.on_prompt_end(order.attempt, order.prompt, model, order.salt)
        if reason == "error":
            if self._without_form(order, news):
                return
            form = order.sampling.structured
            message = "the engine failed on this request; try again"
            if form is not None:
                message = (
                    f"vLLM cannot keep this model to the form {form.kind!r}: check what specifies it, and that the "
                    "tokenizer has an end token and tokens to write the form with"
                )
            news.append((order.stream, Failure(kind="EngineError", message=message, retryable=form is None)))
            return
        keeps = order.sampling.keep_stop and not (reason == "stop" and self._own_end(order))
        if order.sampling.keep_stop and not keeps:
            # vLLM also keeps the text of the model's end token, which was not requested. The id stays: it was drawn.
            order.text = order.text.removesuffix(self.prompter.text(order.ids[-1:]))
        if order.streams:
            self._tell(order, news, order.ids)
        ids, text = [*order.past, *order.ids], order.earlier + order.text
        if order.mute:
            # As where vLLM decodes: of what stopped it the text has nothing, and a half character waits for its end.
            kept = order.ids[:-1] if reason == "stop" and not keeps else order.ids
            text += self.prompter.after(order.context, kept).rstrip("\ufffd")
        if reason == "joined" or (reason == "stop" and not order.sampling.keep_stop and order.ids):
            # vLLM leaves the stop token among the ids although it cuts its text.
            ids = self.prompter.within(ids, text) if reason == "joined" or isinstance(stop, str) else ids[:-1]
        finish = "cancelled" if reason == "abort" else "length" if reason == "length" else "stop"
        news.append((order.stream, self._spoken(order, order.result(finish, ids, text))))

    def _forget(self, order: EngineRequest) -> None:
        del self.running[order.key]
        self._inner.pop(order.inner, None)
        self.counts["prompt"] += len(order.context)
        self.counts["cached"] += order.cached

    def _own_end(self, order: EngineRequest) -> bool:
        """Whether the last token is the model's own end, which the request does not name as one of its stops."""
        sampling = order.sampling
        return order.ids[-1:] != [] and order.ids[-1] in self.ends and order.ids[-1] not in (
            *self.prompter.stops(sampling.stop).ids, *sampling.stop_ids
        )  # fmt: skip

    def _spoken(self, order: EngineRequest, result: Result) -> Result | Failure:
        """Return a result with the thoughts apart from its text; what was cut off within them is a failure."""
        if not order.thoughts:
            return result
        thoughts, spoken = split_reasoning(OPEN + result.text if order.opened else result.text)
        if spoken == result.text:  # no block of thoughts
            return result
        about = min(result.length, self.prompter.count(thoughts))  # their text alone may come to other ids
        sources = result.usage.sources.model_copy(update={"thoughts": "estimate"})
        usage = result.usage.model_copy(update={"thoughts": about, "sources": sources})
        if result.finish == "length" and not spoken.strip():
            return as_failure(CutInThoughts(order.thoughts)).model_copy(update={"usage": usage})
        # Without ids: a continuation reads the text, and the template decides about the thoughts.
        update = {"value": spoken.lstrip(), "reasoning": thoughts, "usage": usage, "token_ids": (), "prompt_ids": ()}
        return result.model_copy(update=update)

    def _without_form(self, order: EngineRequest, news: EngineOutputs) -> bool:
        """Ask again without a form that vLLM cannot keep the model to, if the step can do without. Returns whether."""
        if (form := order.form) is None or order.ids:
            return False
        log.warning("vLLM cannot keep this model to the form %r: the text is checked when it is whole", form[0])
        # Forms come from requests, so their number has no bound.
        if len(self._unkept) >= REMEMBERED:
            self._unkept.clear()
        self._unkept.add(form)
        self._do_without(order, KEEPS)
        order.params = copy.copy(order.params)
        order.params.structured_outputs = None
        self.add(order, news)
        return True

    def _do_without(self, order: EngineRequest, why: str) -> None:
        """Omit the form of a request, and record that in its result."""
        assert order.form is not None
        order.why = f"not held to the form {order.form[0]!r}: {why}"
        order.sampling, order.calls = order.sampling.model_copy(update={"structured": None}), ""

    def _seen(self, order: EngineRequest) -> RequestProgress | None:
        """Return the output so far of a running request, if this vLLM exposes it where 0.32 does."""
        if self._states is None:
            return None
        try:
            return seen(self._states.get(order.inner))
        except AttributeError as error:  # from now on requests report every step
            self.peeks, self._states = False, None
            log.warning("vLLM has moved what tells of running requests (%s): they report every step now", error)
            return None

    # -- the figures -------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Return the counts, and what vLLM holds now. From any thread."""
        engine = self.engine
        if self.process is None:
            self._counters[2:] = measure_cache(self._inner_core)
        counts = dict(zip(COUNTERS, self._counters.tolist(), strict=True))
        held = engine.get_num_unfinished_requests() if engine is not None else 0
        counts["waiting"] = min(held, counts["waiting"])
        return {**self.counts, **counts, "running": held - counts["waiting"], "kv_blocks": self.blocks}

    def _tap(self) -> bool:
        """Read tokens and log-probabilities where they leave the model. Returns whether that can be done.

        Tokens of cancelled requests are counted there too. Log-probabilities are taken off as the arrays they
        are and summarised for all requests together: vLLM's own way decodes each of the k tokens and makes an object
        of it, which costs more than the sampling.
        """
        source: Any = getattr(self.engine, "engine_core", None)
        inner = getattr(source, "get_output", None)
        self._due: list[EngineRequest] = []
        try:
            from vllm.v1.engine import EngineCoreOutput
            from vllm.v1.outputs import LogprobsLists
        except ImportError:
            return False
        filled = prefill_field(EngineCoreOutput, LogprobsLists)
        if inner is None or filled is None:
            return False

        process = self.process

        def tapped() -> Any:
            outputs = inner() if process is None else process.next_outputs(inner)
            counts, scored = self.counts, []
            # A process of its own sends a message where a step has outputs; without any, this thread was woken.
            counts["steps"] += process is None or bool(outputs.outputs)
            for output in outputs.outputs:
                counts["generated"] += len(output.new_token_ids)
                if output.new_logprobs is not None:
                    scored.append(output)
                if filled and (stats := getattr(output, filled)) is not None:
                    counts["queries"] += stats.num_prompt_tokens
                    counts["hits"] += stats.num_cached_tokens
            if scored:
                self._summarise(scored)
            return outputs

        source.get_output = tapped
        return True

    def _summarise(self, outputs: Sequence[Any]) -> None:
        """Take the log-probabilities off the outputs of one step, shape (tokens, 1 + at least k) each, the sampled
        token's first."""
        kinds: dict[int, list[tuple[EngineRequest, Any]]] = {}
        for output in outputs:
            order = self._inner.get(output.request_id)
            if order is None or order.is_raw:  # of several choices each has a name of its own
                continue
            taken, output.new_logprobs = output.new_logprobs, None
            logprobs = taken.logprobs
            if order.labels:
                places = {int(token): place for place, token in enumerate(taken.logprob_token_ids[0])}
                order.label_scores = {label: float(logprobs[0, places[token]]) for label, token in order.labels.items()}
            order.cumulative += float(logprobs[:, 0].sum())
            if order.sampling.token_logprobs:
                order.scores += logprobs[:, 0].tolist()
            if (most := order.sampling.top_logprobs) is not None:
                order.tops.append((taken.logprob_token_ids[:, : 1 + most].copy(), logprobs[:, : 1 + most].copy()))
            if order.trace is not None:
                kinds.setdefault(order.trace.k, []).append((order, logprobs))
        for k, scored in kinds.items():
            most = None if k == -1 else k + 1
            rows = np.concatenate([logprobs[:, 1:most] for _, logprobs in scored])
            figures = zip(*(column.tolist() for column in measure(rows, whole=k == -1)), strict=True)
            for order, logprobs in scored:
                trace: Any = order.trace
                for _ in range(len(logprobs)):
                    trace.add(*next(figures))
                if trace.window and not order.streams and trace.due():
                    self._due.append(order)

    def explain_end(self, error: Exception) -> str:
        """Return why the engine broke with this error."""
        if self.process is not None and (isinstance(error, WorkerLost) or type(error).__name__ == DEAD):
            return self.process.explain_end()
        return f"{type(error).__name__}: {first_line(error)}"

    def close(self) -> None:
        """Free the model and its cache, or what was made of them."""
        self.running.clear()
        self._inner.clear()
        self._states = self._inner_core = None
        with contextlib.suppress(Exception):
            self.engine.engine_core.shutdown()
        self.engine = None
        if self.process is not None:
            self.process.close()
            gc.unfreeze()
        else:
            Core._place.release()
        gc.collect()


def _end_ids(generation: Mapping[str, Any], prompter: Prompter) -> tuple[int, ...]:
    """Return the token ids that end an output of this model by themselves."""
    ids: set[int] = set()
    for eos in (getattr(prompter.tokenizer, "eos_token_id", None), generation.get("eos_token_id")):
        ids.update(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
    return tuple(sorted(ids))

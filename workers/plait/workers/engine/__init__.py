"""The model engine: vLLM, stepped by one thread of its own; its EngineCore in this process or one of its own.

Output is handed to the event loop once per engine step, whatever the number of requests.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from plait.core.errors import EngineError, Rejected, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import CacheUpdate, Progress, Tell
from plait.core.ops import Kind, ModelCall, ToolCall
from plait.core.result import Failure, Result, Token, as_failure
from plait.core.sampling import Sampling

from .._shared import resources
from .._shared.batch_streams import CallbackWorker, Inbox, Reporter, TokenBatch
from .._shared.kv_events import KvEvents
from .._shared.options import takes
from .._shared.prompt import PromptIds, is_long, prompt_key, rendered
from .core_process import first_line
from .engine_loader import broken
from .options import EngineOptions, build_engine_options
from .requests import EngineOutputs, EngineRequest, spelled
from .sampling_parameters import EXTRA
from .socket_folder import SocketFolder
from .token_requests import TOKEN_FIELDS, answer_tokenizer, read_parameters, read_prompts
from .vllm import REPORTS, Core, events_address

__all__ = ["Engine"]


@takes(EngineOptions)
class Engine(CallbackWorker):
    """A vLLM engine.

    `start` takes 8–12 s, most of it vLLM's import, and raises `EngineError` when vLLM is not installed, the model
    cannot be loaded or memory is too little. With `process=own` one process can hold several engines; of those that
    share the process there is one at a time.

    Generated text begins as the tokenizer decodes it after the prompt (a word-level tokenizer puts a space first), so
    that prompt and output concatenate.

    A job with `generated` ids continues them and reports the new tokens with their ids. Greedy, the result equals that
    of an undisturbed run; sampled, it is another draw of the same distribution, for the attempt has a seed of its own.
    `logprob` and `signals` are those of the new tokens. A job with a form (`Sampling.structured`) starts from the
    beginning, because a form's state cannot be restored in its middle; so does one that reports its tokens
    (`Sampling.top_logprobs`).

    A job that does not stream yields only its result, and on request: groups of confidence (`Sampling.window`),
    about eight times per window, checkpoints (`checkpoint`), and token counts for budgets (`Job.report`).
    """

    serves: tuple[Kind, ...] = ("think",)
    reports: int | None = REPORTS
    extra_body: tuple[str, ...] | None = EXTRA
    token_fields: frozenset[str] = TOKEN_FIELDS
    """Fields of the completions that `forward` answers."""

    Options: ClassVar[type[EngineOptions]]

    def __init__(self, model: str | Path, **options: Any) -> None:
        """Describe the engine; nothing is loaded before `start`. The keywords are the fields of `EngineOptions`.

        Raises `ConfigError`.
        """
        self.options = given = build_engine_options("engine", {"model": model, **options})
        self.name, self.slots, self.model = given.name, given.slots, given.model
        self.models = (Path(self.model).name, *given.lora)
        self.identity = ""
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self.on_checkpoint: Callable[[TokenBatch], None] | None = None
        """Takes checkpoints as a whole, in the engine's thread, in place of the jobs that they are of."""
        self._core: Core | None = None
        self._folder: SocketFolder
        self._inbox: Inbox[
            EngineRequest | tuple[Callable[[Core], object], Future[object]] | WorkerLost | str | None
        ] = Inbox()
        self._thread: threading.Thread | None = None
        self._reports: dict[int, Reporter] = {}
        self._orders: dict[int, EngineRequest] = {}
        self._rendering = lru_cache(maxsize=64)(
            lambda prompter, key: asyncio.get_running_loop().run_in_executor(None, prompter.make, key)
        )
        self._keys = itertools.count(1)
        self._gone = asyncio.Event()
        self._events: KvEvents | None = None
        """Follows vLLM's prefix cache (`kv_events`)."""
        self.lost = ""

    async def start(self) -> None:
        """Load the model. Raises `EngineError`."""
        if self._thread is not None:
            return
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Core] = loop.create_future()
        self._inbox = Inbox(loop)
        self._gone, self.lost = asyncio.Event(), ""
        self._folder = SocketFolder()
        self._thread = threading.Thread(target=self._main, args=(ready,), name=f"plait-{self.name}", daemon=True)
        self._thread.start()
        atexit.register(self._stop)
        try:
            # Shielded: the thread answers even after the caller was cancelled, and must not meet a cancelled future.
            core = await asyncio.shield(ready)
        except EngineError:
            await self.close()
            raise
        self._core, self.block, self.cache_tokens = core, core.block, core.blocks * core.block
        if self.options.kv_events:
            events = self._events = KvEvents(events_address(self._folder.path))
            core.on_prompt_end = lambda *prompt: self._inbox.call(lambda: events.add_prompt(*prompt))
            events.start()
        self.identity = await asyncio.to_thread(resources.identity, [self.model, *self.options.lora.values()])

    def begin(self, job: Job, tell: Tell) -> None:
        """Generate for one model call: report progress after each engine step if it streams, then the result."""
        report = self._reports[job.attempt] = Reporter(tell, partial(self._end, job.attempt, tell))
        if (rendering := self._render(job.op)) is None:
            self._submit(job, report)
        else:
            rendering.add_done_callback(lambda _: self._submit(job, report, rendering.exception()))

    def _render(self, op: ModelCall | ToolCall) -> asyncio.Future[PromptIds] | None:
        """Return the future of a long prompt that is made in a thread, once for all its calls; `None` when it is made,
        and for a short one."""
        core = self._core
        if core is None or not isinstance(op, ModelCall) or not is_long(op):
            return None
        rendering = self._rendering(core.prompter, prompt_key(rendered(op, core.prompter.template)))
        return None if rendering.done() else rendering

    def _submit(self, job: Job, report: Reporter, error: BaseException | None = None) -> None:
        if report.ended:
            return
        order = self._order(job, report, error)
        if isinstance(order, EngineRequest):
            order.bare = order.bare and self.on_checkpoint is not None
            self._orders[job.attempt] = order
            self._inbox.put(order)
            return
        if isinstance(order, Result) and order.text and isinstance(job.op, ModelCall) and job.op.stream:
            report.push(Progress(order.text))
        report.push(order)

    def _end(self, attempt: int, tell: Tell, end: Result | Failure) -> None:
        self._reports.pop(attempt, None)
        order, core = self._orders.pop(attempt, None), self._core
        if order is None or not order.tops or not isinstance(end, Result) or core is None:
            tell(end)
            return
        # Decoding up to 20 alternatives of each token takes long: not on the event loop.
        spell = partial(spelled, core.prompter, order.prompt, order.tops, end.text)
        tokens = asyncio.get_running_loop().run_in_executor(None, spell)
        tokens.add_done_callback(lambda _: tell(_with_tokens(end, tokens)))

    async def cancel(self, attempt: int) -> None:
        """Abort a request; its stream then ends with what was generated."""
        if (order := self._orders.get(attempt)) is not None:
            self._inbox.put(order.key)
        elif (report := self._reports.get(attempt)) is not None:  # its prompt is being made
            report.push(Result(value="", finish="cancelled"))

    async def forward(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any] | list[Any] | Failure:
        """Return the answer of `/tokenize`, `/detokenize` or `/tokenizer_info` of vLLM's server, or vLLM's outputs of
        `completions`, one for each prompt."""
        if (core := self._core) is None or self.lost:
            return as_failure(WorkerLost(self.lost or f"the engine {self.name!r} is not running"))
        try:
            if path != "completions":
                return await asyncio.to_thread(answer_tokenizer, path, fields, core.prompter, core.max_model_len)
            prompts = await asyncio.to_thread(read_prompts, fields, core.prompter)
            params = core.able.make_raw(**read_parameters(fields, core.generation))
            lora, salt = core.loras.get(fields.get("model", "")), fields.get("cache_salt") or ""
            outputs = await asyncio.gather(*(self._generate(ids, params, lora, salt) for ids in prompts))
        except EngineError as refusal:
            return as_failure(refusal)
        except Exception as refusal:  # vLLM's own classes change
            return as_failure(Rejected(f"the engine rejected the request: {first_line(refusal)}"))
        return next((output for output in outputs if isinstance(output, Failure)), outputs)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return "" if self._core is None else self._core.prompter.text(ids)

    async def _generate(self, ids: list[int], params: Any, lora: Any, salt: str) -> Any:
        """Return vLLM's output of a prompt, or a failure. A reader that leaves aborts it."""
        number, ended = next(self._keys), asyncio.get_running_loop().create_future()
        report = Reporter(lambda _: None, lambda end: None if ended.done() else ended.set_result(end))
        order = EngineRequest(str(number), report, ids, Sampling(), False, params, lora=lora, salt=salt, is_raw=True)
        self._reports[-number] = report  # attempts have positive numbers
        self._inbox.put(order)
        try:
            return await ended
        finally:
            del self._reports[-number]
            self._inbox.put(order.key)  # no effect on one that has ended

    async def reload(self, folder: str | Path) -> None:
        """Load the weights of another folder, of a model of the same shape. Raises `EngineError` if they cannot
        be loaded, and while requests are running: their caches belong to the old weights."""
        await self._change(lambda core: core.reload(str(folder)))
        self.identity = await asyncio.to_thread(resources.identity, [str(folder), *self.options.lora.values()])

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator's memory and the prefix cache: vLLM's sleep mode, which needs its `enable_sleep_mode`
        and does nothing on a CPU. Raises `EngineError`, also while requests are running; hold further ones back until
        `wake`, as a `Sampler` does."""
        await self._change(lambda core: core.engine.sleep(level))

    async def wake(self) -> None:
        """Load what `sleep` freed. Raises `EngineError`."""
        await self._change(lambda core: core.engine.wake_up())

    async def _change(self, change: Callable[[Core], object]) -> None:
        if self._core is None or self.lost:
            raise EngineError(self.lost or f"the engine {self.name!r} is not running")
        if self._reports:
            raise EngineError(f"the engine {self.name!r} has {len(self._reports)} running requests: let them end first")
        done = Future[object]()
        self._inbox.put((change, done))
        await asyncio.wrap_future(done)

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Return the tokens of a prompt."""
        if (core := self._core) is None:
            return None
        if (rendering := self._render(op)) is not None:
            await asyncio.shield(rendering)
        return len(core.prompter.ids(rendered(op, core.prompter.template)))

    async def cache_news(self) -> AsyncIterator[CacheUpdate]:
        """Yield what vLLM says of its prefix cache (`kv_events`)."""
        if self._events is not None:
            async for news in self._events.mailbox:
                yield news

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True` once; end when the engine has broken, hangs or is closed. It does not come back by itself."""
        if self._gone.is_set():
            return
        yield True
        # Eight checks per allowed silence: a hang is reported at most an eighth of it late.
        steps, waited, silence = -1, 0.0, self.options.silence
        while not self._gone.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), silence / 8)
            busy, now = self.pulse()
            waited = waited + silence / 8 if busy and now == steps else 0.0
            steps = now
            if waited >= silence:
                self._break(f"the engine {self.name!r} has requests and has made no step for {silence:g} s")

    def pulse(self) -> tuple[bool, int]:
        """Return whether the engine has requests, and how many steps it has made."""
        core = self._core
        return (False, 0) if core is None else (bool(core.running), core.counts["steps"])

    async def close(self) -> None:
        """Abort everything, stop the thread and free the model."""
        await asyncio.to_thread(self._stop)
        self._core = None
        for report in list(self._reports.values()):  # of orders that came after the last that the thread took
            report.push(Result(value="", finish="cancelled"))
        if self._events is not None:
            await self._events.close()
            self._events = None
        self._gone.set()

    def stats(self) -> dict[str, int]:
        """Return counters since `start`, and what the engine holds now.

        Counted: engine `steps`; tokens `generated` (every sampled token, also of cancelled requests);
        prompt tokens looked up in the prefix cache (`queries`) and found there (`hits`), and of the requests that have
        ended `prompt` and `cached`; requests with a form (`forms`), and the milliseconds of compiling these
        (`form_ms`). Now: requests `running` and `waiting`, `kv_blocks` in all, and `kv_used` by what
        runs (those that only keep finished prefixes are free).
        """
        core = self._core
        if core is None:
            return dict.fromkeys(("steps", "generated", "prompt", "cached", "queries", "hits", "running", "waiting"), 0)
        return core.stats()

    def _stop(self) -> None:
        """End the thread. Also at the interpreter's exit, which must not find it inside the engine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self._stop)
            self._inbox.put(None)
            # A step over a long prompt can take that long. The thread is a daemon, so it does not hold up the
            # interpreter's end.
            thread.join(60.0)

    def _order(
        self, job: Job, report: Reporter, error: BaseException | None = None
    ) -> EngineRequest | Result | Failure:
        core, think = self._core, job.op
        if core is None or self.lost:
            return as_failure(WorkerLost(self.lost or f"the engine {self.name!r} is not running"))
        try:
            if error is not None:
                raise error
            if not isinstance(think, ModelCall):
                raise EngineError(f"the engine {self.name!r} serves think steps, not {think.kind!r} steps")
            if think.model is not None and think.model not in (*self.models, self.model):
                there = ", ".join(self.models)
                raise EngineError(f"the engine {self.name!r} has no model {think.model!r} (there are: {there})")
            return core.order(job, think, str(next(self._keys)), report)
        except EngineError as refusal:
            return as_failure(refusal)
        except Exception as refusal:  # vLLM's own classes change
            return as_failure(Rejected(f"the engine rejected the request: {first_line(refusal)}"))

    def _main(self, ready: asyncio.Future[Core]) -> None:
        """Run the engine's thread: build, then step while there is work, and sleep otherwise."""
        core: Core | None = None
        inbox, folder = self._inbox, self._folder
        try:
            core = Core(self.options, folder.path, lambda: inbox.put(WorkerLost("")))
        # Also exceptions by which libraries end a process: the waiter for `ready` must receive them.
        except BaseException as error:
            told = broken(error, self.model)
            self._inbox.call(lambda: ready.done() or ready.set_exception(told))
            folder.remove()
            return
        if core.process is not None:
            inbox.on_put = core.process.wake
        self._inbox.call(lambda made=core: ready.done() or ready.set_result(made))
        try:
            while self._serve(core):
                pass
        except Exception as error:
            reason = f"the engine {self.name!r} broke: {core.explain_end(error)}"
            failure = as_failure(WorkerLost(reason))
            self._inbox.post([(order.stream, failure) for order in core.running.values()])
            self._inbox.call(lambda: self._break(reason))
        finally:
            core.close()
            folder.remove()

    def _serve(self, core: Core) -> bool:
        """Accept new orders, make one step, and hand over its output. Return whether to continue."""
        news: EngineOutputs = []
        # With running requests a step is due at once; without any, the thread waits for an order.
        for order in self._inbox.take(wait=not core.running):
            match order:
                case None:
                    for key in list(core.running):
                        core.abort(key, news)
                    self._inbox.post(news)
                    return False
                case str():
                    core.abort(order, news)
                case EngineRequest():
                    core.add(order, news)
                case (change, done):
                    if done.set_running_or_notify_cancel():
                        try:
                            done.set_result(change(core))
                        except Exception as error:  # vLLM's own classes change
                            failure = error if isinstance(error, EngineError) else EngineError(first_line(error))
                            done.set_exception(failure)
                case WorkerLost():
                    raise order
        if core.process is not None:
            self._inbox.post(news)  # the next step's outputs may take a while
            news = []
        checkpoint = core.step(news) if core.running else None
        self._inbox.post(news)
        if checkpoint is not None and checkpoint.ids and self.on_checkpoint is not None:
            # In an actor a whole checkpoint goes through one pipe, past the event loop and its jobs.
            self.on_checkpoint(checkpoint)
        return True

    def _break(self, reason: str) -> None:
        """On the loop: everything that still waits is lost, and so is what comes later."""
        self.lost = reason
        failure = as_failure(WorkerLost(reason))
        for report in list(self._reports.values()):
            report.push(failure)
        self._gone.set()


def _with_tokens(end: Result, tokens: asyncio.Future[tuple[Token, ...]]) -> Result | Failure:
    error = tokens.exception()
    return end.model_copy(update={"tokens": tokens.result()}) if error is None else as_failure(error)

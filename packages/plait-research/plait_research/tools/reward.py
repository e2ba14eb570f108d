"""Tool `reward`: how good a text is, by a reward model. The scorer `reward-model` calls it.

Give it to a run with a tools file of two lines, as `--tools FILE.py`:

from plait_research.tools.reward import reward_model reward = reward_model("/models/reward")

Without an address the model runs in a vLLM engine of its own beside the one that generates; with one
(`base_url="http://127.0.0.1:8000"`) on a server, such as `vllm serve MODEL --runner pooling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plait.core.errors import ConfigError, EngineError, ToolError
from plait.core.tools.tool import Tool, tool
from plait.workers.http import ResponseLimits, ServerConnection
from plait.workers.tools.embed import closing

# Process reward models, asked as they were trained: what question and text become, and where the marks stand.
#
# A style says both. All of them read a text's last step, with those before it in view. The forms are those of
# search-and-learn (`sal/models/reward_models.py`), token for token, but for a blank end of the text, which is left out.


Style = Literal["plain", "qwen-prm", "math-shepherd", "rlhflow", "skywork"]
STYLES: tuple[Style, ...] = ("plain", "qwen-prm", "math-shepherd", "rlhflow", "skywork")

_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
"""System prompt of the training of Qwen's process reward models."""
_END, _TAG = "<extra_0>", "ки"
"""What ends a step for Qwen's models, and for Math-Shepherd's."""


class RewardPrompt(NamedTuple):
    """The input of a model."""

    ids: list[int]
    """Token ids."""
    places: list[int]
    """Of the steps' marks among them."""
    words: tuple[int, int] | None = None
    """Ids of the tokens for right and wrong: the mark is what the model would write after the place. `None`: the mark
    is what a head says at the place."""

    @property
    def prompt(self) -> list[int]:
        """The ids up to the last mark's place."""
        return self.ids[: self.places[-1] + 1]


def build_model_input(style: Style, tokenizer: Any, question: str, text: str, system: str = "") -> RewardPrompt:
    """Return the input of a model of a style for a question and a text whose steps are separated by blank lines (for
    `skywork`: by line breaks). `system` goes before the question for `math-shepherd`."""
    text = text.rstrip()
    match style:
        case "qwen-prm":
            messages = [
                {"role": "system", "content": _SYSTEM},
                {"role": "user", "content": question},
                {"role": "assistant", "content": text.replace("\n\n", _END) + _END},
            ]
            rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
            ids, mark = _ids(tokenizer, rendered), tokenizer.encode(_END, add_special_tokens=False)[0]
            return RewardPrompt(ids, [place for place, token in enumerate(ids) if token == mark])
        case "math-shepherd":
            steps = text.replace("\n\n", f" {_TAG}\n\n") + f" {_TAG}"
            ids = _ids(tokenizer, f"{system}\n{question}\n {steps}")
            mark = tokenizer.encode(_TAG)[-1]
            plus, minus = (tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in ("+", "-"))
            return RewardPrompt(ids, [place for place, token in enumerate(ids) if token == mark], (plus, minus))
        case "rlhflow":
            turns: list[dict[str, str]] = []
            places: list[int] = []
            ids = []
            for number, step in enumerate(text.split("\n\n")):
                turns.append({"role": "user", "content": step if number else f"{question} {step}"})
                ids = _chat(tokenizer, turns, True)
                places.append(len(ids) - 1)
                turns.append({"role": "assistant", "content": "+"})
            return RewardPrompt(ids, places, (_last(tokenizer, "+"), _last(tokenizer, "-")))
        case "skywork":
            ids, places = tokenizer.encode((tokenizer.bos_token or "") + question + "\n"), []
            for step in text.split("\n"):
                ids = [*ids, *(tokenizer.encode(step) if step else []), _last(tokenizer, "\n")]
                places.append(len(ids) - 1)
            return RewardPrompt(ids, places)
        case "plain":
            ids = _ids(tokenizer, question + text)
            return RewardPrompt(ids, [len(ids) - 1])


def likely(logprobs: Sequence[float | None]) -> float:
    """Return the chance of right against wrong, of their log-probabilities; `None`: not among the likeliest."""
    if all(logprob is None for logprob in logprobs):
        raise ToolError("neither the word for right nor that for wrong is likely here: is it a model of this style?")
    right, wrong = (0.0 if logprob is None else math.exp(logprob) for logprob in logprobs)
    return right / (right + wrong) if right + wrong else 0.5


def tokenizer_of(model: str, revision: str | None = None) -> Any:
    """Return a tokenizer by its folder or id. Raises `ConfigError`."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError("styles of reward models need a tokenizer: pip install 'plait[tokenizer]'") from None
    try:
        return AutoTokenizer.from_pretrained(model, revision=revision)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"there is no tokenizer at {model} ({str(error).splitlines()[0]}): give `tokenizer`"
        ) from None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(token) for token in tokenizer(text)["input_ids"]]


def _chat(tokenizer: Any, turns: list[dict[str, str]], opened: bool) -> list[int]:
    encoded = tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=opened, return_dict=True)
    return [int(token) for token in encoded["input_ids"]]


def _last(tokenizer: Any, text: str) -> int:
    return int(tokenizer.encode(text)[-1])


Endpoint = Literal["classify", "score", "pooling"]
_FIELDS = {"classify": "probs", "score": "score", "pooling": "data"}
"""Endpoints, and where their answers have the numbers."""
_LIKELIEST = 20
"""Tokens that a server tells of at most, by default."""


def reward_model(
    model: str,
    *,
    base_url: str | None = None,
    endpoint: Endpoint = "classify",
    label: int = -1,
    chat: bool = False,
    style: Style = "plain",
    tokenizer: str | None = None,
    tokenizer_revision: str | None = None,
    system: str = "",
    key_variable: str | None = None,
    name: str = "reward",
    timeout: float | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Tool[..., Any]:
    """Return a tool that takes `question` and `text` and returns a number in [0, 1].

    Args:
        model: folder of the model (or its id on the hub), or with `base_url` its name on the server.
        base_url: a vLLM server, with or without `/v1`.
        endpoint: `classify` (a classification head: the probability of a label), `score` (a cross-encoder's score of
            question and text), or `pooling` (a head that tells something at each token: what it tells at the last one,
            as a process reward model does; one number goes through a sigmoid, several through a softmax).
        label: the place of the label that means good; the last one by default.
        chat: render question and text as a conversation by the model's template, as most outcome reward models were
            trained; by default the text follows the question as it is.
        style: how a published process reward model was trained to be asked: `qwen-prm` (Qwen2.5-Math-PRM: the head's
            number at `<extra_0>` behind the last step), `skywork` (the head's number at the last line's end),
            `math-shepherd` and `rlhflow` (how likely it would write `+` rather than `-`; served by
            `vllm serve MODEL`, without a head). `endpoint`, `label` and `chat` are then the style's.
        tokenizer: folder or id of the model's tokenizer, for a style; by default that of `model`.
        tokenizer_revision: commit, tag or branch of the tokenizer on the hub.
        system: text before the question, for `math-shepherd`.
        key_variable: environment variable with the server's key.
        name: name of the tool.
        timeout: seconds that a call may take; by default 60 on a server and 600 in the engine, whose first call waits
            until the model is loaded.
        engine: options of the engine (`plait.workers.engine.options.EngineOptions`), such as `{"dtype": "float32"}`.

    Raises `ConfigError` for options that make no sense.
    """
    if endpoint not in _FIELDS:
        raise ConfigError(f"there is no endpoint {endpoint!r} of reward models: there are {', '.join(_FIELDS)}")
    if style not in STYLES:
        raise ConfigError(f"there is no style {style!r} of reward models: there are {', '.join(STYLES)}")
    if style in ("math-shepherd", "rlhflow") and base_url is None:
        raise ConfigError(
            f"a model of style {style!r} writes its marks: serve it (`vllm serve MODEL`), give `base_url`"
        )
    if chat and endpoint == "score":
        raise ConfigError("a score is of question and text as they are: leave `chat` out, or use another endpoint")
    if base_url is not None and engine is not None:
        raise ConfigError("`engine` are options of an engine here, and `base_url` names a server: give one of them")
    if style != "plain":
        endpoint = "pooling"
    seconds = timeout if timeout is not None else 600.0 if base_url is None else 60.0
    ask = _here(model, endpoint, engine or {}) if base_url is None else _there(
        model, endpoint, base_url.rstrip("/").removesuffix("/v1"), key_variable, seconds
    )  # fmt: skip

    words: list[Any] = []
    """The tokenizer, once it was needed."""

    async def reward(text: str, question: str = "") -> float:
        """Return how good a text is, from 0 to 1.

        Args:
            text: the answer, or its beginning.
            question: what was asked.
        """
        if style != "plain":
            if not words:
                words.append(tokenizer_of(tokenizer or model, tokenizer_revision))
            order = build_model_input(style, words[0], question, text, system)
            return await _of_style(ask, order, model)
        if chat:
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
            numbers = await ask({"messages": turns})
        elif endpoint == "score":
            numbers = await ask({"text": question or " ", "pair": text or " "})
        else:
            numbers = await ask({"text": question + text or " "})
        return _number(numbers, endpoint, label, model)

    return tool(name=name, timeout=seconds)(reward)


async def _of_style(ask: Any, order: RewardPrompt, model: str) -> float:
    """Return the mark of an order's last step."""
    if order.words is not None:
        return likely(await ask({"next": order.prompt, "words": order.words}))
    rewards = await ask({"ids": order.ids})
    rows = rewards if isinstance(rewards, list) and rewards and isinstance(rewards[-1], list) else [rewards]
    if len(rows) not in (len(order.ids), len(order.places)):  # of each token, or already of the steps alone
        raise ToolError(
            f"{model} gave {len(rows)} rows of numbers for {len(order.ids)} tokens: is it of this style, and served "
            """with --pooler-config '{"task": "token_classify"}'?"""
        )
    return _number(rows[order.places[-1]] if len(rows) == len(order.ids) else rows[-1], "pooling", -1, model)


def _here(model: str, endpoint: Endpoint, options: Mapping[str, Any]) -> Any:
    """Return the function that queries an engine in another process."""
    from .pooling import Pooling

    pooling = Pooling(model, **options)
    task = "token_classify" if endpoint == "pooling" else "classify"

    async def ask(order: dict[str, Any]) -> Any:
        try:
            return await pooling.ask(task=task, activation=False if endpoint == "pooling" else None, **order)
        except EngineError as error:
            raise ToolError(str(error)) from None

    return ask


def _there(model: str, endpoint: Endpoint, address: str, key_variable: str | None, seconds: float) -> Any:
    """Return the function that queries a server."""

    def link() -> ServerConnection:
        return ServerConnection(address, key_variable, ResponseLimits(request_s=seconds))

    async def ask(order: dict[str, Any]) -> Any:
        fields: dict[str, Any] = {"model": model}
        if "next" in order:
            return await _next(link(), fields, order)
        if "ids" in order:
            fields |= {"input": order["ids"]}
        elif endpoint == "score":
            fields |= {"text_1": order["text"], "text_2": order["pair"]}
        else:
            fields |= {"input": order["text"]} if "text" in order else {"messages": order["messages"]}
        if endpoint == "pooling":
            # The model's own activation may be a sigmoid, a softmax or none: the numbers are asked for without it.
            fields |= {"use_activation": False}
        async with closing(link()) as opened:
            reply = await opened.post(f"/{endpoint}", fields)
        rows: Any = reply.get("data") if isinstance(reply, Mapping) else None
        row: Any = rows[0] if isinstance(rows, list) and rows else None
        return row.get(_FIELDS[endpoint]) if isinstance(row, Mapping) else None

    return ask


async def _next(link: ServerConnection, fields: dict[str, Any], order: dict[str, Any]) -> list[float | None]:
    """Return the log-probabilities of two tokens behind a prompt, where they are among the likeliest."""
    fields |= {"prompt": order["next"], "max_tokens": 1, "temperature": 0.0, "logprobs": _LIKELIEST}
    async with closing(link):
        reply = await link.post("/v1/completions", fields | {"return_tokens_as_token_ids": True})
    choices: Any = reply.get("choices") if isinstance(reply, Mapping) else None
    told: Any = choices[0].get("logprobs") if isinstance(choices, list) and choices else None
    tops: Any = told.get("top_logprobs") if isinstance(told, Mapping) else None
    first: Mapping[str, Any] = tops[0] if isinstance(tops, list) and tops else {}
    return [first.get(f"token_id:{word}") for word in order["words"]]


def _number(value: Any, endpoint: Endpoint, label: int, model: str) -> float:
    """Return the number in a model's answer. Raises `ToolError` without one."""
    while endpoint == "pooling" and isinstance(value, list) and value and isinstance(value[-1], list):
        value = value[-1]  # the last token's
    numbers: list[Any] = value if isinstance(value, list) else [value]
    sound = all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number) for number in numbers
    )
    if not sound or not -len(numbers) <= label < len(numbers):
        raise ToolError(f"{model} gave no number by {endpoint!r}: is it a reward model for that?")
    if endpoint != "pooling":
        return float(numbers[label])
    if len(numbers) == 1:
        return 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, numbers[0]))))
    shares = [math.exp(number - max(numbers)) for number in numbers]
    return shares[label] / sum(shares)

"""Process reward models, asked as they were trained: what question and text become, and where the marks stand.

A style says both. All of them read a text's last step, with those before it in view. The forms are those of
search-and-learn (`sal/models/reward_models.py`), token for token, but for a blank end of the text, which is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from plait.core.errors import ConfigError, ToolError

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

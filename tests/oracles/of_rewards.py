"""Process reward models: token ids, and where the steps' marks stand, as search-and-learn asks them.

The models' own tokenizers are not in any repository; a small one with the same control words stands in for them, on
both sides. What it makes of a text differs from theirs, what is put together and read off does not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from plait_research.tools.reward import Style, build_model_input, likely
from tests.oracles.harness import Oracle, take

SAL = ("huggingface/search-and-learn", "6f81cac8b1ca4c4be9fabefc27a856c928f3ae7f", "Apache-2.0")
FILE = "src/sal/models/reward_models.py"
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
LLAMA = (
    "{{ '<|begin|>' }}{% for m in messages %}<|start|>{{ m['role'] }}<|end|>\n\n{{ m['content'] }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)


@functools.cache
def words(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and of the control words of all styles."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marks = ["<extra_0>", "ки", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|start|>", "<|end|>", "<|eot|>", "<bos>"]
    plain.add_special_tokens(marks)
    made = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<bos>", eos_token="<|eot|>", pad_token="<|eot|>")
    made.chat_template = template
    return made


def logit(ids: list[int], place: int, word: int) -> float:
    """Return what a model says at a place: made up, and the same for both sides."""
    return 3 * math.sin(0.37 * place + 1.3 * ids[place] + 0.11 * word)


def _solutions(random: Random) -> Iterator[dict[str, Any]]:
    while True:
        steps = [
            random.choice(("## Step 1: add\n2 + 2 = 4", "so x is 5", "The answer is $\\boxed{4}$", "ок, 7 - 3"))
            for _ in range(random.randint(1, 4))
        ]
        yield {"question": random.choice(("What is 2+2?", "Solve x - 1 = 4\nfor x.")), "steps": steps}


class _Old:
    """A tokenizer as older versions of transformers have it: a chat is a tensor, not a dictionary."""

    def __init__(self, inner: PreTrainedTokenizerFast, torch: Any) -> None:
        self._inner, self._torch = inner, torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, texts: Any, **_: Any) -> Any:
        rows = [self._inner(str(each))["input_ids"] for each in ([texts] if isinstance(texts, str) else texts)]
        found = _Batch(input_ids=self._torch.tensor(rows))
        found.input_ids = found["input_ids"]
        return found

    def apply_chat_template(self, turns: Any, tokenize: bool = True, return_tensors: Any = None, **more: Any) -> Any:
        said = self._inner.apply_chat_template(turns, tokenize=False, **more)
        return self._torch.tensor([self._inner(str(said))["input_ids"]]) if tokenize else said


class _Batch(dict[str, Any]):
    input_ids: Any

    def to(self, device: Any) -> Any:
        return self


class _Model:
    """A model of theirs whose numbers are made up; it keeps what it was given."""

    device = "cpu"

    def __init__(self, torch: Any, width: int) -> None:
        self._torch, self._width, self.given = torch, width, []

    def __call__(self, input_ids: Any, **_: Any) -> Any:
        ids = input_ids[0].tolist()
        self.given.append(ids)
        rows = [[logit(ids, place, word) for word in range(self._width)] for place in range(len(ids))]
        return _Said(self._torch.tensor([rows], dtype=self._torch.float64))


class _Said:
    """What a model says, by name or as the first of a tuple."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    def __getitem__(self, place: int) -> Any:
        return self.logits


def _text(case: dict[str, Any]) -> str:
    return "\n\n".join(case["steps"])


def qwen_theirs(clone: Path) -> Callable[[Any], Any]:
    import torch

    names = ("Qwen_2_5_Math.score", "Qwen_2_5_Math.make_step_rewards")
    space = take(clone / FILE, *names, torch=torch, F=torch.nn.functional)

    def run(case: dict[str, Any]) -> dict[str, Any]:
        model = _Model(torch, 2)
        own = SimpleNamespace(
            tokenizer=_Old(words(CHATML), torch), model=model, make_step_rewards=space["make_step_rewards"]
        )
        ((marks,),) = space["score"](own, [case["question"]], [[_text(case)]])
        return {"ids": model.given[0], "marks": marks}

    return run


def shepherd_theirs(clone: Path) -> Callable[[Any], Any]:
    import torch

    known = words(CHATML)
    given = {
        "CANDIDATE_TOKENS": [known.encode("+")[-1], known.encode("-")[-1]], "STEP_TAG_ID": known.encode("ки")[-1],
        "torch": torch, "accumulate": itertools.accumulate,
    }  # fmt: skip
    infer = take(clone / FILE, "batched_math_shepherd_inference", **given)["batched_math_shepherd_inference"]
    score = take(clone / FILE, "MathShepherd.score", batched_math_shepherd_inference=infer, **given)["score"]

    def run(case: dict[str, Any]) -> dict[str, Any]:
        model = _Model(torch, 300)
        config = SimpleNamespace(system_prompt="Solve it.", prm_batch_size=1)
        own = SimpleNamespace(search_config=config, model=model, tokenizer=_Old(known, torch))
        with contextlib.suppress(AssertionError):  # theirs wants one mark an output, and is given all of its steps
            score(own, [case["question"]], [[_text(case)]])
        ids = model.given[0]
        (found,) = infer(model, _Given(ids, torch), [""], 1)
        return {"ids": ids, "marks": found}

    return run


class _Given:
    """A tokenizer that gives ids that are known."""

    def __init__(self, ids: list[int], torch: Any) -> None:
        self._ids, self._torch = ids, torch

    def __call__(self, *_: Any, **__: Any) -> Any:
        found = _Batch(input_ids=self._torch.tensor([self._ids]))
        found.input_ids = found["input_ids"]
        return found


def rlhflow_theirs(clone: Path) -> Callable[[Any], Any]:
    import torch

    space = take(clone / FILE, "RLHFFlow._score_single", torch=torch)
    known = words(LLAMA)

    def run(case: dict[str, Any]) -> dict[str, Any]:
        model = _Model(torch, 300)
        candidates = [known.encode("+")[-1], known.encode("-")[-1]]
        own = SimpleNamespace(tokenizer=_Old(known, torch), model=model, candidate_tokens=candidates)
        ((marks,),) = space["_score_single"](own, [case["question"]], [[_text(case)]])
        return {"ids": model.given[-1][:-2], "marks": marks}  # the last mark is read before `+` and the end of its turn

    return run


def skywork_theirs(clone: Path) -> Callable[[Any], Any]:
    prepare = take(clone / "src/sal/models/skywork_o1_prm/io_utils.py", "prepare_input")["prepare_input"]

    def run(case: dict[str, Any]) -> dict[str, Any]:
        ids, _, flags = prepare(case["question"], _text(case), words(CHATML), "\n")
        return {"ids": ids, "places": [place for place, flag in enumerate(flags) if flag]}

    return run


def ours(style: Style) -> Callable[[Any], Any]:
    """Return what ours asks a model of a style, and reads off it."""

    def run(case: dict[str, Any]) -> dict[str, Any]:
        tokenizer = words(LLAMA if style == "rlhflow" else CHATML)
        order = build_model_input(style, tokenizer, case["question"], _text(case), "Solve it.")
        if style == "skywork":
            return {"ids": order.ids, "places": order.places}
        right, wrong = (1, 0) if order.words is None else order.words
        marks = [_mark(order.ids, place, right, wrong) for place in order.places]
        return {"ids": order.ids, "marks": marks}

    return run


def _mark(ids: list[int], place: int, right: int, wrong: int) -> float:
    return likely([logit(ids, place, right), logit(ids, place, wrong)])


def _of(style: Style, function: str, theirs: Callable[[Path], Callable[[Any], Any]], file: str = FILE) -> Oracle:
    return Oracle(
        f"prm-{style}", *SAL, f"{file} {function}", _solutions, theirs, ours(style), number=40, tolerance=1e-6
    )


ORACLES = [
    _of("qwen-prm", "Qwen_2_5_Math.score, make_step_rewards", qwen_theirs),
    _of("math-shepherd", "MathShepherd.score, batched_math_shepherd_inference", shepherd_theirs),
    _of("rlhflow", "RLHFFlow._score_single", rlhflow_theirs),
    _of("skywork", "prepare_input", skywork_theirs, "src/sal/models/skywork_o1_prm/io_utils.py"),
]

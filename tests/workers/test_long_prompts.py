"""Long prompts: in pieces with the ids of the whole, made once for all that share them, and in a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plait_models
import pytest
from hypothesis import example, given, strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from plait.core import ModelCall, Result, Text
from plait.core.chat import Message, assistant_message, user
from plait.core.events import Job
from plait.core.result import Failure
from plait.workers._shared import prompt as prompt_module
from plait.workers._shared.prompt import Prompter, find_split_tokens
from plait.workers.engine import Engine
from plait.workers.engine.requests import EngineRequest

SPECIAL = ["<|im_start|>", "<|im_end|>", "[INST]", "</s>", "<end>"]
TEMPLATE = "".join(SPECIAL)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["the cat sat on the mat, and 17 other cats watched it\n\n", "Über café: naïve <|im>\t[INS]"] * 20


def byte_level(prefix: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\t", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def llama2() -> Tokenizer:
    """Spaces are put in front by the normalizer, as in Llama 2."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def stripping() -> Tokenizer:
    """Normalizers that look at the ends of a text, and special tokens that take the space beside them."""
    tokenizer = byte_level(False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", rstrip=True), AddedToken("<|im_end|>", lstrip=True)])
    tokenizer.add_special_tokens([AddedToken("[INST]", single_word=True), AddedToken("<|im_end|>\n\n"), "<end"])
    tokenizer.add_tokens([AddedToken("cat", normalized=True), AddedToken("sat", normalized=False)])
    return tokenizer


def hiding() -> Tokenizer:
    """A special token that may begin before another and take its first character."""
    tokenizer = byte_level(False)
    tokenizer.add_special_tokens(["a</"])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: byte_level(False),
    "prefixed bytes": lambda: byte_level(True),
    "metaspace always": lambda: metaspace("always"),
    "metaspace first": lambda: metaspace("first"),
    "metaspace never": lambda: metaspace("never"),
    "llama 2": llama2,
    "stripping": stripping,
    "hiding": hiding,
}
BUNDLED = Path(plait_models.__file__).parent / "models"


@functools.cache
def tokenizer_of(kind: str) -> Any:
    if kind not in KINDS:
        return AutoTokenizer.from_pretrained(BUNDLED / kind)
    inner = KINDS[kind]()
    inner.add_special_tokens([each for each in SPECIAL if inner.token_to_id(each) is None])
    return PreTrainedTokenizerFast(tokenizer_object=inner)


@functools.cache
def prompter_of(kind: str) -> Prompter:
    tokenizer = tokenizer_of(kind)
    tokenizer.chat_template = TEMPLATE
    return Prompter(tokenizer)


PARTS = [*SPECIAL, *SPECIAL, " ", "\n", "\n\n", "  ", "the cat", "cat", " sat", "<|im", "_start|>", "a", "<"]
words = st.sampled_from(PARTS)
texts = st.lists(st.one_of(words, st.text(max_size=4)), max_size=30).map("".join)


@pytest.mark.parametrize("kind", [*KINDS, "countdown", "tables", "outline"])
@given(text=texts)
@example(text="cat <|im_end|> \n\n<|im_start|>  the cat<|im_end|>\n\n<|im_start|> sat a</s>a[INST]b<end>")
def test_the_ids_of_the_pieces_are_those_of_the_whole(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    prompter = prompter_of(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_module, "PIECE_CHARS", 1)
        ids = prompter._encode_long(text)
    assert ids == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        *((kind, SPECIAL) for kind in KINDS if kind not in ("stripping", "hiding")),
        # `<|im_end|>` takes the space before it, and `[INST]` must be a word.
        ("stripping", ["<|im_start|>", "</s>", "<end>", "<end"]),
        ("hiding", ["[INST]"]),
        ("countdown", ["<end>"]),
    ],
)
def test_texts_are_split_where_no_other_token_reaches(kind: str, tokens: list[str]) -> None:
    assert sorted(find_split_tokens(tokenizer_of(kind), TEMPLATE)) == sorted(tokens)


def test_a_tokenizer_that_is_not_known_is_given_whole_texts() -> None:
    assert find_split_tokens(SimpleNamespace(), TEMPLATE) == []


# --- what is made how often ---


class Counting:
    """A tokenizer that records what it renders and encodes, and in which thread."""

    def __init__(self, inner: Any, template: str | None = CHATML) -> None:
        self.inner = inner
        inner.chat_template = template
        self.rendered = 0
        self.encoded: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
        self.rendered += 1
        self.threads.add(threading.current_thread())
        return self.inner.apply_chat_template(*args, **kwargs)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(text)
        self.threads.add(threading.current_thread())
        return self.inner.encode(text, add_special_tokens=add_special_tokens)

    def clear(self) -> None:
        self.rendered, self.encoded, self.threads = 0, [], set()


@pytest.fixture
def counting() -> Counting:
    return Counting(tokenizer_of("bytes"))


@pytest.fixture
def prompter(counting: Counting) -> Prompter:
    made = Prompter(counting)
    counting.clear()
    return made


def talk(turns: int, words: int = 300) -> tuple[Message, ...]:
    return tuple((user if n % 2 == 0 else assistant_message)(f"{n} " + "the cat " * words) for n in range(turns))


def chat(messages: tuple[Message, ...], **more: Any) -> ModelCall:
    return ModelCall(prompt=(Text(text="And now?"),), messages=messages, chat=True, **more)


def whole(counting: Counting, call: ModelCall) -> list[int]:
    given = [{"role": each.role, "content": each.text} for each in call.messages]
    if given and given[-1]["role"] == "user":
        given[-1]["content"] += "\nAnd now?"
    else:
        given.append({"role": "user", "content": "And now?"})
    text = counting.inner.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
    return counting.inner.encode(text, add_special_tokens=False)


def test_all_samples_of_a_conversation_are_rendered_and_encoded_once(counting: Counting, prompter: Prompter) -> None:
    messages = talk(5)
    made = [prompter.prompt(chat(tuple(iter(messages)))) for _ in range(64)]  # as the machine fills in each sample
    assert made[0].ids == whole(counting, chat(messages))
    assert all(each is made[0] for each in made)
    assert counting.rendered == 1 and len("".join(counting.encoded)) < sum(len(each.text) for each in messages) + 500


def test_only_what_is_new_of_a_conversation_is_encoded(counting: Counting, prompter: Prompter) -> None:
    messages = talk(40)
    for turns in range(1, 41, 2):
        counting.clear()
        ids = prompter.ids(chat(messages[:turns]))
        assert ids == whole(counting, chat(messages[:turns]))
        assert sum(map(len, counting.encoded)) <= 3 * 2400 + prompt_module.PIECE_CHARS, turns


def test_calls_that_differ_are_rendered_apart(counting: Counting, prompter: Prompter) -> None:
    messages, others = talk(1, words=1), talk(1, words=1)
    calls = [chat(messages), chat(others), chat(messages, begin="1."), chat(messages).model_copy(update={"prompt": ()})]
    made = [prompter.ids(call) for call in calls]
    assert counting.rendered == 4 and made[0] == made[1] and len(set(map(tuple, made))) == 3


# --- in the engine ---


class Core:
    """In the place of vLLM: every request ends at once with the length of its prompt."""

    def __init__(self, prompter: Prompter) -> None:
        self.prompter = prompter
        self.threads: list[threading.Thread] = []

    def order(self, job: Job, think: ModelCall, key: str, report: Any) -> EngineRequest:
        self.threads.append(threading.current_thread())
        made = EngineRequest(key, report, self.prompter.ids(think), think.sampling, False)
        asyncio.get_running_loop().call_soon(report.push, Result(value=str(len(made.prompt))))
        return made


def engine_with(prompter: Prompter) -> Engine:
    made = Engine(str(BUNDLED / "countdown"))
    made._core = Core(prompter)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def job(attempt: int, call: ModelCall) -> Job:
    return Job(attempt=attempt, run="r", step=f"r:{attempt}", op=call)


async def items_of(engine: Engine, attempt: int, call: ModelCall) -> list[Any]:
    return [item async for item in engine.run(job(attempt, call))]


async def test_a_long_prompt_is_made_once_and_in_a_thread(counting: Counting, prompter: Prompter) -> None:
    engine, messages = engine_with(prompter), talk(5)
    counted = asyncio.gather(*(engine.count_tokens(chat(messages)) for _ in range(8)))
    runs = await asyncio.gather(*(items_of(engine, n, chat(messages)) for n in range(64)))
    length = len(whole(counting, chat(messages)))
    assert runs == [[Result(value=str(length))]] * 64 and await counted == [length] * 8
    assert counting.rendered == 1 and threading.main_thread() not in counting.threads
    assert not engine._reports and not engine._orders


async def test_a_short_prompt_is_made_at_once(counting: Counting, prompter: Prompter) -> None:
    engine = engine_with(prompter)
    seen: list[Any] = []
    engine.begin(job(1, chat(talk(1, words=1))), seen.append)
    assert counting.rendered == 1 and len(engine._orders) == 1
    await asyncio.sleep(0)
    assert len(seen) == 1


async def test_a_job_that_is_cancelled_while_its_prompt_is_made_ends_at_once(prompter: Prompter) -> None:
    engine = engine_with(prompter)
    seen: dict[int, list[Any]] = {1: [], 2: []}
    for attempt, items in seen.items():
        engine.begin(job(attempt, chat(talk(5))), items.append)
    await engine.cancel(1)
    assert seen[1] == [Result(value="", finish="cancelled")]
    async with asyncio.timeout(300):
        while not seen[2]:
            await asyncio.sleep(0.001)
    assert seen[2][0].value and len(seen[1]) == 1 and len(engine._core.threads) == 1  # type: ignore[union-attr]


async def test_an_engine_that_breaks_while_a_prompt_is_made_ends_the_job(prompter: Prompter) -> None:
    engine = engine_with(prompter)
    seen: list[Any] = []
    engine.begin(job(1, call := chat(talk(5))), seen.append)
    engine._break("it broke")
    await engine.count_tokens(call)
    await asyncio.sleep(0)
    (end,) = seen
    assert isinstance(end, Failure) and end.lost and not engine._orders


async def test_a_long_prompt_that_the_template_refuses_fails_with_its_reason(counting: Counting) -> None:
    counting.inner.chat_template = "{{ raise_exception('no system role') }}"
    engine = engine_with(Prompter(counting))
    counting.clear()
    messages = talk(5)
    for (end,) in await asyncio.gather(*(items_of(engine, n, chat(messages)) for n in range(3))):
        assert isinstance(end, Failure) and "no system role" in end.message
    assert counting.rendered == 1


async def test_a_long_prompt_that_the_tokenizer_cannot_encode_is_rejected_as_a_short_one_is(
    monkeypatch: pytest.MonkeyPatch, prompter: Prompter
) -> None:
    def encode(text: str, opening: bool) -> tuple[int, ...]:
        raise RuntimeError("no such character")

    monkeypatch.setattr(prompter, "_encode_uncached", encode)
    engine = engine_with(prompter)
    ends = [await items_of(engine, n, chat(talk(1, words))) for n, words in enumerate((1, 3000))]
    assert [[end.kind, "no such character" in end.message] for (end,) in ends] == [["Rejected", True]] * 2

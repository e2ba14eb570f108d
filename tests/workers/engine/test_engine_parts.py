"""What the engine is made of besides vLLM: tokens and stops, memory and cores, the way from its thread to the loop."""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers.decoders import DecodeStream

from plait.core import ModelCall, Progress, Ref, Result, Text, Tokens
from plait.core.errors import EngineError
from plait.core.events import Job
from plait.core.interfaces import Tell
from plait.core.result import Failure
from plait.workers._shared import resources
from plait.workers._shared.batch_streams import CallbackWorker, Inbox, Reporter, together
from plait.workers._shared.prompt import Prompter
from plait.workers.engine.core_process import environment, explain

GIB = 1 << 30


# --- tokens ----------------------------------------------------------------------------------------------------------


@functools.cache
def tokenizers_made() -> dict[str, Prompter]:
    """The two below, once for all examples of a property."""
    with tempfile.TemporaryDirectory() as folder:
        return {"words": make_words(Path(folder)), "pieces": make_pieces()}


@pytest.fixture
def words(tmp_path: Path) -> Prompter:
    """A word-level tokenizer."""
    return make_words(tmp_path)


@pytest.fixture(scope="module")
def pieces() -> Prompter:
    """A byte-level BPE tokenizer."""
    return make_pieces()


def make_words(folder: Path) -> Prompter:
    """Return a word-level tokenizer."""
    from transformers import AutoTokenizer

    from ..tiny_model import build

    return Prompter(AutoTokenizer.from_pretrained(build(folder)))


def make_pieces() -> Prompter:
    """Return a byte-level BPE tokenizer with `<s>` as opening, `<|end|>` as an added token, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat\n\nthe cat\n\n"] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|end|>")
    wrapped.chat_template = "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [assistant]"
    return Prompter(wrapped)


@pytest.mark.parametrize("kind", ["words", "pieces"])
@given(data=st.data())
def test_text_decoded_at_the_end_is_what_the_engine_would_have_told(kind: str, data: st.DataObject) -> None:
    prompter: Prompter = tokenizers_made()[kind]
    ids = st.integers(0, len(prompter.tokenizer) - 1)
    context, said = data.draw(st.lists(ids, min_size=1, max_size=40)), data.draw(st.lists(ids, max_size=40))
    if not prompter.decodes_late(context):
        assert kind == "pieces" and prompter.text(context).endswith("\ufffd")
        return
    stream = DecodeStream(ids=context, skip_special_tokens=False)  # as vLLM decodes
    told = "".join(stream.step(prompter.tokenizer._tokenizer, each) or "" for each in said)
    assert prompter.after(context, said).rstrip("\ufffd") == told


def test_a_tokenizer_that_is_not_known_is_left_to_the_engine() -> None:
    class Other:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "".join(map(chr, ids))

    prompter = Prompter(Other())
    assert not prompter.decodes_late([65]) and prompter.after([65], [66, 67]) == "BC"


def test_spaces_are_as_the_model_wrote_them(words: Prompter) -> None:
    words.tokenizer.clean_up_tokenization_spaces = True  # as some models' settings say
    alone = Prompter(words.tokenizer)
    assert alone.text([7, 8]) == "w1 w2"


def think(*parts: str | list[int], chat: bool = False) -> ModelCall:
    return ModelCall(
        prompt=tuple(Text(text=p) if isinstance(p, str) else Tokens(ids=tuple(p)) for p in parts), chat=chat
    )


def test_only_text_that_opens_a_prompt_gets_the_opening_token(pieces: Prompter) -> None:
    cat, sat = (list(pieces.tokenizer.encode(text, add_special_tokens=False)) for text in ("the cat", " sat"))
    assert pieces.ids(think("the cat", " sat")) == [0, *cat, *sat]
    assert pieces.ids(think([5, 6], "the cat")) == [5, 6, *cat]
    assert pieces.ids(think([0, 7], [8])) == [0, 7, 8]


def test_chat_goes_through_the_template_where_there_is_one(pieces: Prompter, words: Prompter) -> None:
    assert pieces.text(pieces.ids(think("the ", "cat", chat=True))) == "<s>[user] the cat [assistant]"
    assert words.ids(think("w1 w2", chat=True)) == words.ids(think("w1 w2"))


def test_references_left_in_a_prompt_are_refused(words: Prompter) -> None:
    with pytest.raises(ValueError, match="only text and tokens"):
        words.ids(ModelCall(prompt=(Ref(step="other"),)))


def test_long_texts_are_tokenised_like_short_ones(words: Prompter) -> None:
    text = " ".join(f"w{n % 200}" for n in range(3000))
    assert words.ids(think(text)) == [n % 200 + 6 for n in range(3000)]


def test_word_level_text_survives_a_round_trip_with_its_control_words(words: Prompter) -> None:
    text = "<spawn> w1 w2 <wait> <join> w3 <end> <pad>"
    assert words.text(words.ids(think(text))) == text


def test_the_bundled_models_text_survives_a_round_trip(root: Path) -> None:
    folder = root / "packages" / "plait-models" / "plait_models" / "models" / "countdown"
    if not (folder / "tokenizer.json").exists():
        pytest.skip("the bundled model is not there")
    from transformers import AutoTokenizer

    prompter = Prompter(AutoTokenizer.from_pretrained(folder))
    text = "<child> T24 3 5 7 <go> 3 + 5 = 8 | 7 + 15 <lo> - 1 <lo> ; <spawn> <wait> <none> <end>"
    ids = prompter.ids(think(text))
    assert len(ids) == len(text.split()) and prompter.text(ids) == text
    assert prompter.stops(("<wait>", "<end>")) == (tuple(ids[-3::2]), ())


def test_a_stop_that_is_a_word_of_a_word_level_vocabulary_is_a_token_only(words: Prompter) -> None:
    assert words.stops(("<wait>", "w5")) == ((4, 11), ())
    assert words.stops(("w1 w2", "no such word")) == ((), ("w1 w2", "no such word"))


def test_a_stop_that_may_hide_inside_other_tokens_is_looked_for_as_text_too(pieces: Prompter) -> None:
    (newline,) = pieces.tokenizer.encode("\n", add_special_tokens=False)
    assert pieces.stops(("\n",)) == ((newline,), ("\n",))
    assert pieces.stops(("<|end|>",)) == ((1,), ())


@pytest.mark.parametrize("stop", ["sat on", "\n\n", "on the"])
def test_tokens_of_a_cut_output_are_those_before_the_stop_text(pieces: Prompter, stop: str) -> None:
    ids = pieces.tokenizer.encode("the cat sat on the mat\n\nthe cat", add_special_tokens=False)
    text = pieces.text(ids)
    kept = text[: text.index(stop)]
    within = pieces.within(ids, kept)
    assert kept.startswith(pieces.text(within))
    assert not kept.startswith(pieces.text(ids[: len(within) + 1]))


def test_tokens_of_a_cut_output_with_words(words: Prompter) -> None:
    ids = words.ids(think("w1 w2 w3 w4"))
    assert words.within(ids, " w1 w2 ") == ids[:2]  # as the engine decodes after a prompt, up to a stop text "w3 w4"
    assert words.within(ids, "") == []


# --- memory, cores, folders ------------------------------------------------------------------------------------------


def machine(root: Path, available: int, groups: str = "") -> dict[str, Path]:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available >> 10} kB\n")
    (root / "proc" / "self" / "cgroup").write_text(groups)
    return {"proc": root / "proc", "cgroups": root / "cgroups"}


def available(at: dict[str, Path]) -> int:
    """Return the available memory of a machine whose files are in a folder."""

    def read(file: str) -> str:
        path = Path(file.replace("/sys/fs/cgroup", str(at["cgroups"])).replace("/proc", str(at["proc"]), 1))
        return path.read_text() if path.is_file() else ""

    return resources.available_memory(read)


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_a_limit_the_machines_free_memory_counts(tmp_path: Path) -> None:
    assert available(machine(tmp_path, 7 * GIB)) == 7 * GIB


def test_the_tightest_limit_of_nested_groups_counts(tmp_path: Path) -> None:
    at = machine(tmp_path, 64 * GIB, "0::/a/b\n")
    group(at["cgroups"] / "a", memory__max=str(10 * GIB), memory__current=str(8 * GIB), memory__stat="anon 1\n")
    group(at["cgroups"] / "a" / "b", memory__max="max", memory__current=str(3 * GIB), memory__stat="")
    assert available(at) == 2 * GIB
    # page cache inside the group gives way
    group(at["cgroups"] / "a", memory__stat=f"anon 1\ninactive_file {GIB}\n")
    assert available(at) == 3 * GIB


def test_limits_of_the_older_kind_count_too(tmp_path: Path) -> None:
    at = machine(tmp_path, 64 * GIB, "9:cpu:/x\n8:memory:/x\n")
    limit, usage = str(4 * GIB), str(GIB)
    group(at["cgroups"] / "memory" / "x", memory__limit_in_bytes=limit, memory__usage_in_bytes=usage)
    group(at["cgroups"] / "memory", memory__limit_in_bytes=str((1 << 63) - 4096), memory__usage_in_bytes=usage)
    assert available(at) == 3 * GIB


LLAMA = {"num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": 128, "max_position_embeddings": 1024}


def test_the_cache_holds_every_slot_at_full_context_if_it_can() -> None:
    halves = 2 * 2 * 5 * 128
    budget = functools.partial(resources.kv_budget, dtype="bfloat16")
    assert budget(LLAMA, 128, None, 8 * GIB) == 128 * 1024 * halves
    assert resources.kv_budget(LLAMA, 64, None, 8 * GIB, "float32") == 64 * 1024 * 2 * halves
    assert budget(LLAMA, 1, None, 8 * GIB) == GIB // 16
    large = LLAMA | {"num_hidden_layers": 40, "hidden_size": 8192, "num_attention_heads": 64}
    assert budget(large, 128, None, 30 * GIB) == 10 * GIB
    assert budget(large, 128, None, GIB) == GIB // 2
    assert budget(None, 128, None, 8 * GIB) == GIB


def test_what_does_not_fit_is_refused_with_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 2 * GIB)
    assert resources.reserve("m", tmp_path, LLAMA, GIB, 8, None, "bfloat16") == GIB
    (tmp_path / "model.safetensors").write_bytes(b"")
    with (tmp_path / "model.safetensors").open("r+b") as weights:
        weights.truncate(GIB)  # a hole: takes no room on the disk
    with pytest.raises(EngineError, match=r"needs 2\.8 GiB.*1\.0 GiB of it KV cache.*2\.0 GiB are free"):
        resources.reserve("m", tmp_path, LLAMA, GIB, 8, None, "bfloat16")


@pytest.mark.parametrize(
    ("stored", "dtype", "times"),
    [
        ({"dtype": "bfloat16"}, "bfloat16", 1),
        ({"dtype": "bfloat16"}, "float32", 2),
        ({"torch_dtype": "float32"}, "half", 0.5),
        ({}, "float32", 1),
        ({"dtype": "bfloat16", "quantization_config": {}}, "float32", 1),
    ],
)
def test_weights_take_the_room_of_the_type_that_they_are_loaded_as(
    tmp_path: Path, stored: dict[str, Any], dtype: str, times: float
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1024)
    assert resources.loaded_bytes(tmp_path, stored, dtype) == times * 1024


def test_the_type_on_a_cpu_is_the_one_asked_for_or_the_processors(tmp_path: Path) -> None:
    assert resources.cpu_dtype("auto", tmp_path) == "float32"  # a system that lists no flags
    (tmp_path / "cpuinfo").write_text("flags : avx512_bf16\n")
    assert resources.cpu_dtype("auto", tmp_path) == "bfloat16"
    assert resources.cpu_dtype("float16", tmp_path) == "float16"


def test_too_few_gpus_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    resources.enough_gpus(1)
    with pytest.raises(EngineError, match="tensor_parallel_size=4 needs 4 GPUs and 1 can be seen"):
        resources.enough_gpus(4)


def test_a_gpu_that_others_fill_is_reported_with_the_remedy() -> None:
    """The text is that of vLLM 0.32."""
    text = (
        "Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    message = explain(ValueError(text), "m")
    assert "3.1/79.1 GiB" in message and "lower gpu_memory_utilization in engine_args" in message


def test_very_small_models_compute_with_one_thread(tmp_path: Path) -> None:
    assert resources.default_threads(tmp_path, [0, 1, 2]) == 1
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(GIB)
    assert resources.default_threads(tmp_path, [0, 1, 2]) == 3
    assert resources.default_threads(None, None) == max(1, len(resources.usable_cores()) // 2)


def test_the_libraries_are_told_to_be_quiet_unless_a_person_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_LOGGING_LEVEL": "ERROR"})
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    environment(1, forced=False, cores=None, local=True)
    levels = {name: os.environ[name] for name in ("VLLM_LOGGING_LEVEL", "TORCH_CPP_LOG_LEVEL", "VLLM_NO_USAGE_STATS")}
    assert levels == {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


def test_hub_ids_are_told_from_folders(tmp_path: Path) -> None:
    assert resources.local_model("owner/model") is None
    (tmp_path / "config.json").write_text("[]")
    assert resources.local_model(str(tmp_path)) == tmp_path
    with pytest.raises(EngineError, match="not a JSON object"):
        resources.read_config(tmp_path)
    with pytest.raises(EngineError, match="is a file"):
        resources.local_model(str(tmp_path / "config.json"))
    with pytest.raises(EngineError, match="there is no model"):
        resources.local_model("./nowhere")


def test_cores_that_are_not_there_are_refused() -> None:
    caught: list[EngineError] = []

    def elsewhere() -> None:
        try:
            resources.bind([100_000])
        except EngineError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(caught) == 1 and "100000" in str(caught[0])


# --- from thread to loop ---------------------------------------------------------------------------------------------


def test_a_reporter_drops_empty_progress_and_what_follows_the_end() -> None:
    seen: list[Any] = []
    reporter = Reporter(seen.append)
    for item in (Progress("", 0), Progress("a", 0), Progress("", 2), Result(value="a"), Progress("late", 1)):
        reporter.push(item)
    reporter.push(Failure(kind="X", message="too late"))
    assert seen == [Progress("a", 0), Progress("", 2), Result(value="a")] and reporter.ended


async def test_a_reader_that_leaves_cancels_the_job_and_one_that_read_the_end_does_not() -> None:
    class Telling(CallbackWorker):
        name, slots, serves = "telling", 3, ("think",)

        def begin(self, job: Job, tell: Tell) -> None:
            for item in (Progress("a", 1), Result(value="a"))[: job.attempt]:
                tell(item)

        async def cancel(self, attempt: int) -> None:
            stops.append(attempt)

    stops: list[int] = []
    waiting, left, read = (
        Telling().run(Job(attempt=n, run="r", step="r:s", op=ModelCall(prompt="?"))) for n in range(3)
    )
    task = asyncio.ensure_future(anext(waiting))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with aclosing(left):  # type: ignore[type-var]
        assert await anext(left) == Progress("a", 1)
    assert [item async for item in read] == [Progress("a", 1), Result(value="a")]
    assert stops == [0, 1]


def test_the_fields_of_merged_progress_are_joined() -> None:
    pieces = [Progress("a", 1, None, (7,)), Progress("", 2, -1.0, (8, 9), 3.0, 2.5), Progress("b", 1, -4.0, (5,))]
    assert together(pieces) == Progress("ab", 4, -2.0, (7, 8, 9, 5), 3.0, 2.5)


async def test_one_wake_up_of_the_loop_brings_all_that_was_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    inbox: Inbox[str] = Inbox(loop)
    seen: list[list[Any]] = [[] for _ in range(50)]
    reporters = [Reporter(each.append) for each in seen]
    calls: list[Any] = []
    real = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: calls.append(args) or real(*args))

    def work() -> None:
        for reporter in reporters:
            inbox.post([(reporter, Progress("x", 1))])
        for reporter in reporters:  # another step: the loop has not taken the first, and gets the two as one
            inbox.post([(reporter, Progress("y", 1)), (reporter, Result(value="xy"))])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # the loop is held meanwhile, so nothing is delivered in between
    await asyncio.sleep(0)
    assert all(each == [Progress("xy", 2), Result(value="xy")] for each in seen)
    assert len(calls) == 1


async def test_an_end_does_not_overtake_what_was_called_before_it() -> None:
    inbox: Inbox[str] = Inbox(asyncio.get_running_loop())
    seen: list[Any] = []
    reporter = Reporter(seen.append)

    def work() -> None:
        inbox.post([(reporter, Progress("x", 1))])
        inbox.call(lambda: reporter.push(Progress("y", 1)))
        inbox.post([(reporter, Result(value="xy"))])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # the loop is held meanwhile, so all three wait for it
    await asyncio.sleep(0)
    assert seen == [Progress("x", 1), Progress("y", 1), Result(value="xy")]


async def test_a_thread_sleeps_until_there_is_an_order() -> None:
    inbox: Inbox[int] = Inbox(asyncio.get_running_loop())
    assert inbox.take(wait=False) == []
    waiting = asyncio.create_task(asyncio.to_thread(inbox.take, True))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    inbox.put(7)
    assert await asyncio.wait_for(waiting, 300) == [7]


def test_news_for_a_loop_that_is_closed_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    inbox: Inbox[int] = Inbox(loop)
    loop.close()
    inbox.post([(Reporter(print), Result())])

"""What a tokenizer and a chat template give away of a model, before it is asked to spawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from plait.apps.common.session import preflight as look
from plait.planners.threads.threads import Threads
from plait.planners.threads.threads.dialects import load
from tests.planners.token_worker import Letters

NAMES = ["multiverse", "npr", "parallel-r1", "threadweaver", "threadweaver-conclusion"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_with_the_tags_passes(name: str) -> None:
    table = load(name)
    planner = Threads(dialect=name)
    assert planner.preflight(Letters(table.tags).encode) == ()
    assert planner.preflight(Letters(table.tags).encode, "user: What? assistant: <think>") == ()


@pytest.mark.parametrize("name", NAMES)
def test_tags_of_several_tokens_are_told(name: str) -> None:
    (said,) = Threads(dialect=name).preflight(Letters(()).encode)
    tag = load(name).tags[0]
    assert f"{tag} is {len(Letters(()).encode(tag))} tokens" in said and "will not spawn" in said


def test_tags_that_are_all_unknown_are_told() -> None:
    said = Threads(dialect="npr").preflight(lambda text: [0])
    assert len(said) == 1 and "are the same token" in said[0]


def test_a_seam_inside_a_token_is_told() -> None:
    tags = load("threadweaver").tags

    def encode(text: str) -> list[int]:
        return Letters((*tags, "</Thread>\n")).encode(text)

    (said,) = Threads(dialect="threadweaver").preflight(encode)
    assert "share a token where they meet" in said


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        ("", "no chat template"),
        ("user: What? assistant: <think>\n\n</think>\n\n", "thinking mode"),
        ("system: write <Parallel> user: What?", "writes the dialect's tags"),
    ],
)
def test_templates(opening: str, words: str) -> None:
    (said,) = Threads(dialect="threadweaver").preflight(Letters(load("threadweaver").tags).encode, opening)
    assert words in said


def test_a_dialect_in_plain_text_asks_for_nothing() -> None:
    assert Threads(dialect="apr").preflight(Letters(()).encode, "") == ()


def model_folder(folder: Path, tags: tuple[str, ...], template: str | None) -> Path:
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "x": 1}, unk_token="<unk>"))
    tokenizer.add_special_tokens([AddedToken(tag) for tag in tags])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
    return folder


def test_a_models_folder_is_read(tmp_path: Path) -> None:
    planner = Threads(dialect="multiverse")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}<think></think>"
    found = look(planner, str(model_folder(tmp_path, load("multiverse").tags, template)))
    assert found is not None and len(found) == 1 and "thinking mode" in found[0]
    found = look(planner, str(model_folder(tmp_path, (), None)))
    assert found is not None and len(found) == 2 and "no chat template" in found[1]


def test_the_bundled_model_fits_its_own_dialect_and_no_other() -> None:
    from plait.runtime.client.config import BUNDLED_MODEL

    assert look(Threads(), str(BUNDLED_MODEL)) == ()
    assert look(Threads(dialect="threadweaver"), str(BUNDLED_MODEL))
    assert look(Threads(), "no/such-folder") is None

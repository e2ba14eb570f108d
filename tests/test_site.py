"""The site's hooks: every page of docs/README.md is in the navigation; links out of docs/ lead to the repository."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from plait.apps.main import COMMANDS, check_words
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_AT_THE_TOP = {words.split()[0] for group in COMMANDS.values() for words in group}
CONFIG = SimpleNamespace(repo_url="https://github.com/plait-dev/plait/", nav=None)


def _site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _page(path: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


def test_the_navigation_has_every_page_of_docs() -> None:
    nav = str(_site().on_config(SimpleNamespace(repo_url=CONFIG.repo_url, nav=None)).nav)
    missing = [
        name
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if f"'{(name := str(path.relative_to(ROOT / 'docs')))}'" not in nav
    ]
    assert not missing, "name them in docs/README.md"


def test_a_link_out_of_docs_leads_to_the_repository() -> None:
    text = (
        "[log](../experiments/LOG.md#one) [run](../policies) [page](planners.md#two) [web](https://x.org) [at](#three)"
    )
    made = _site().on_page_markdown(text, page=_page("policies.md"), config=CONFIG, files=None)
    assert made == (
        "[log](https://github.com/plait-dev/plait/blob/main/experiments/LOG.md#one) "
        "[run](https://github.com/plait-dev/plait/tree/main/policies) "
        "[page](planners.md#two) [web](https://x.org) [at](#three)"
    )


def test_the_first_page_decides_in_eight_rows_and_what_they_name_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    front = (ROOT / "docs" / "README.md").read_text().partition("## Start")[0]
    rows = [line for line in front.partition("**What shall I use?**")[2].splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 8
    assert {words.split()[0] for words in re.findall(r"`plait ([^`]+)`", front)} <= COMMANDS_AT_THE_TOP
    for options in re.findall(r"`(--planner [^`]+)`", front):
        check_words(["plan", "6 times 7?", *options.replace("FILE.py", "examples/city_tools.py").split()])
    for spec in re.findall(r"--planner (\S+?)[` ]", front):
        assert Plugins().planner(Plugin.of(spec)) is not None


def test_llms_txt_names_the_sources_of_the_pages(tmp_path: Path) -> None:
    _site().on_post_build(config=SimpleNamespace(repo_url=CONFIG.repo_url, site_dir=str(tmp_path)))
    text = (tmp_path / "llms.txt").read_text()
    assert "(https://raw.githubusercontent.com/plait-dev/plait/main/docs/quickstart.md)" in text
    assert "](quickstart.md" not in text
    assert "(https://raw.githubusercontent.com/plait-dev/plait/main/experiments/README.md)" in text

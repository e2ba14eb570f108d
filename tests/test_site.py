"""The site's hooks: every page of docs/README.md is in the navigation; links lead to pages or to the repository."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.apps.command_table import all_commands
from plait.apps.main import check_words
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins
from tests.apps.viewer.chromium import BROWSER, tab

READ = ("", "quickstart/", "concepts/", "planners/", "howto/serve/", "howto/repl/", "howto/own-planner/",
        "reference/commands/", "reference/settings/")  # fmt: skip
"""Pages that are looked at in a browser: the first, and those with wide tables, long commands and pictures."""
ROOT = Path(__file__).resolve().parent.parent
COMMANDS_AT_THE_TOP = {words.split()[0] for group in all_commands().values() for words in group}
CONFIG = SimpleNamespace(repo_url=None, edit_uri=None, nav=None, extra={}, site_url=None)
REPOSITORY = "https://github.com/someone/plait"


def _site() -> Any:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _page(path: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


def test_the_navigation_has_every_page_of_docs() -> None:
    nav = str(_site().on_config(SimpleNamespace(**vars(CONFIG))).nav)
    missing = [
        name
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if f"'{(name := str(path.relative_to(ROOT / 'docs')))}'" not in nav
    ]
    assert not missing, "name them in docs/README.md"


@pytest.mark.parametrize("repository", ["", REPOSITORY])
def test_a_link_out_of_docs_leads_to_a_page_or_to_the_repository(repository: str) -> None:
    text = (
        "[peers](../experiments/peers/README.md#one) [run](../policies) [page](planners.md#two) [web](https://x.org) "
        "[at](#three) [folder](../experiments/peers)"
    )
    site = _site()
    site.REPOSITORY = repository
    made = site.on_page_markdown(text, page=_page("policies.md"), config=CONFIG, files=None)
    run = f"[run]({REPOSITORY}/tree/main/policies)" if repository else "run"
    assert made == (
        f"[peers](experiments/peers/README.md#one) {run} [page](planners.md#two) [web](https://x.org) "
        "[at](#three) [folder](experiments/peers/README.md)"
    )
    text = "[page](../../docs/evidence.md) [other](../router/README.md) [code](run.py)"
    made = site.on_page_markdown(text, page=_page("experiments/peers/README.md"), config=CONFIG, files=None)
    code = f"[code]({REPOSITORY}/blob/main/experiments/peers/run.py)" if repository else "code"
    assert made == f"[page](../../evidence.md) [other](../router/README.md) {code}"


def test_the_address_of_the_repository_stands_in_one_place() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    files = [ROOT / name for name in listed.splitlines() if Path(name).suffix in (".md", ".toml", ".yml", ".cff")]
    written = re.compile(r"github\.com/[\w-]+/plait\b")
    assert not [path for path in files if path.is_file() and written.search(path.read_text(encoding="utf-8"))]
    assert _site().REPOSITORY == "" or _site().REPOSITORY.startswith("https://")


def test_code_in_a_table_reads_as_on_github() -> None:
    html = "<p><code>a\\|b</code></p><table><td style='x'><code>FILE.csv\\|jsonl</code></td><td>c</td></table>"
    made = _site().on_page_content(html, page=_page("policies.md"), config=CONFIG, files=None)
    assert made == "<p><code>a\\|b</code></p><table><td style='x'><code>FILE.csv|jsonl</code></td><td>c</td></table>"


def test_a_wide_table_becomes_blocks_on_a_phone() -> None:
    for columns, marked in ((2, False), (3, True)):
        html = f"<table>\n<thead>\n<tr>{'<th>a</th>' * columns}</tr></thead><tbody></tbody></table>"
        made = _site().on_page_content(html, page=_page("policies.md"), config=CONFIG, files=None)
        assert ("<table data-wide>" in made) == marked


def test_no_node_of_a_diagram_has_a_reserved_name() -> None:
    """Mermaid reads such a name as the beginning of another diagram, and draws none."""
    for page in (ROOT / "docs").rglob("*.md"):
        for diagram in re.findall(r"```mermaid\nflowchart .*?\n(.*?)```", page.read_text(), re.DOTALL):
            assert not re.findall(r"(?m)(?:^|> ?|- ?)\s*(graph|end|subgraph|class|style|click)\b", diagram), page


def test_a_package_that_is_not_the_named_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site()
    monkeypatch.setattr(site.shutil, "which", lambda name: None)
    assert site.fetch_mermaid(tmp_path) is None, "without npm a diagram is its text"
    (tmp_path / f"{site.MERMAID.replace('@', '-')}.tgz").write_bytes(b"another")
    monkeypatch.setattr(site.shutil, "which", lambda name: "true")
    with pytest.raises(SystemExit, match="not the package"):
        site.fetch_mermaid(tmp_path)


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


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_the_pages_fit_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    """The site in a browser, on a desktop and a phone: nothing is wider than the window, no script complains, links and
    pictures are there."""
    folder = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    with served(folder) as address, tab() as browser:
        for width in (1280, 390):
            browser.size(width, 900)
            for name in READ:
                browser.send("Page.navigate", url=f"{address}/{name}")
                ready = f"location.pathname === '/{name}' && document.readyState === 'complete'"
                until(lambda ready=ready: browser.run(ready))
                assert browser.run("document.documentElement.scrollWidth <= innerWidth"), (
                    f"{name} is wider than {width}"
                )
                torn = (
                    "[...document.querySelectorAll('td code')].filter(c => c.getClientRects().length > 1)"
                    ".map(c => c.textContent).filter(text => /^\\w{1,20}$/.test(text))"
                )
                assert not browser.run(torn), f"names are torn apart in {name}"
                unseen = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
                assert not browser.run(unseen)
                broken = browser.run(
                    "Promise.all([...new Set([...document.querySelectorAll('a[href]')].map(a => a.href.split('#')[0]))]"
                    ".filter(h => h.startsWith(location.origin)).map(h => fetch(h).then(r => r.ok ? '' : h)))"
                    ".then(all => all.filter(Boolean))"
                )
                assert not broken
        assert not browser.problems
        lost = {url for url in browser.requests if not url.startswith((address, "data:", "about:", "blob:"))}
        assert not lost, "the pages load something from elsewhere"


def until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield its address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_picture_of_the_first_page_moves() -> None:
    picture = (ROOT / "docs" / "images" / "run.svg").read_text()
    frames = picture.count('class="frame"')
    assert "images/run.svg" in (ROOT / "docs" / "README.md").read_text()
    assert frames >= 5 and picture.count("@keyframes f") == frames
    assert len(picture) < 300_000


@pytest.mark.parametrize("repository", ["", REPOSITORY])
def test_llms_txt_names_the_pages(repository: str, tmp_path: Path) -> None:
    site = _site()
    site.REPOSITORY = repository
    config = SimpleNamespace(site_url="https://docs.example.org/", site_dir=str(tmp_path))
    site.on_post_build(config=config)
    text = (tmp_path / "llms.txt").read_text()
    root = "https://raw.githubusercontent.com/someone/plait/main" if repository else "https://docs.example.org"
    assert f"({root}{'/docs' if repository else ''}/quickstart.md)" in text
    assert "](quickstart.md" not in text
    assert f"({root}/experiments/README.md)" in text

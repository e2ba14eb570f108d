"""Hooks of mkdocs (see mkdocs.yml): the navigation, pages from outside docs/, links, diagrams and the version.

The site loads nothing from other hosts. Mermaid, which draws the diagrams, is a package of npm; it is copied into the
site where npm can fetch it, and elsewhere a diagram is shown as its text.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.hooks.site")
ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REPOSITORY: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["plait"]["repository"]
"""Address of the public repository; empty until one exists. The only place where it is written."""
MERMAID = "mermaid@11.17.2"
MERMAID_SHA512 = "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
"""Digest of the package, as npm gives it (`npm view … dist.integrity`)."""
CDN = "https://unpkg.com/mermaid@11/dist/mermaid.min.js"
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
WHOLE_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"(?<=<img src=\")([^\"]+)(?=\")")
CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)
STYLE = (
    "<style>.md-typeset td code{word-break:normal}"
    "@media(max-width:44.9em){.md-typeset table:not([class]){display:table;width:100%}"
    ".md-typeset table:not([class]) th,.md-typeset table:not([class]) td{min-width:0;padding:.4em}"
    ".md-typeset table:not([class]) td code{white-space:normal}"
    ".md-typeset table[data-wide]{display:block}.md-typeset table[data-wide] thead{display:none}"
    ".md-typeset table[data-wide] tbody{display:block}.md-typeset table[data-wide] tr{display:block;padding:.4em 0}"
    ".md-typeset table[data-wide] tr+tr{border-top:.05rem solid var(--md-typeset-table-color)}"
    ".md-typeset table[data-wide] td{display:block;border:0;padding:.1em .4em;overflow-wrap:anywhere}"
    ".md-typeset table[data-wide] td:empty{display:none}}</style>"
)
"""Below 720 px a table is as wide as the page, and one of three columns or more becomes a block for each row."""
SECTION = re.compile(r"^## (.+)$|^- \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
OUTSIDE = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")


def on_config(config: Any) -> Any:
    """Make the navigation from docs/README.md: a section for each heading, a page for each item. What it does not name
    is put beside the page that its folder begins with: a decision under Decisions, an experiment under Experiments."""
    config.repo_url, config.edit_uri = REPOSITORY or None, "edit/main/docs/" if REPOSITORY else None
    nav: list[dict[str, Any]] = [{"Home": "README.md"}]
    for heading, title, page in SECTION.findall((DOCS / "README.md").read_text(encoding="utf-8")):
        if heading:
            nav.append({heading: []})
            continue
        pages: list[Any] = next(iter(nav[-1].values()))
        page = page.removeprefix("../")
        pages.append({title: [page, *_beside(page)] if page in ("adr/README.md", "experiments/README.md") else page})
    nav.append({"Project": [{name.removesuffix(".md").capitalize(): name} for name in OUTSIDE if name.endswith(".md")]})
    config.nav = nav
    if os.environ.get(
        "MIKE_DOCS_VERSION"
    ):  # `mike deploy` builds one of several versions, and the page offers the others
        config.extra["version"] = {"provider": "mike"}
    return config


def _beside(index: str) -> list[str]:
    """Return the other pages of a folder, its own folders' among them."""
    top = DOCS if (DOCS / index).exists() else ROOT
    return [str(path.relative_to(top)) for path in sorted((top / index).parent.rglob("*.md")) if path != top / index]


def _outside() -> list[Path]:
    """Return the files outside docs/ that the site has too: the project's own pages, experiments and their pictures."""
    found = [path for kind in ("md", "svg", "png") for path in sorted((ROOT / "experiments").rglob(f"*.{kind}"))]
    return [*(ROOT / name for name in OUTSIDE if name.endswith(".md")), *found]


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages and pictures from outside docs/."""
    from mkdocs.structure.files import File

    for path in _outside():
        files.append(File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links at the site's pages. A link to another file leads to the repository; without one, its text stays."""
    uri = page.file.src_uri
    top = DOCS if (DOCS / uri).exists() else ROOT
    here = (top / uri).parent
    there = {path: str(path.relative_to(ROOT)) for path in _outside()}

    def pointed(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_dir() and (target / "README.md").exists():
            target /= "README.md"
        own = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) and target.suffix else there.get(target)
        anchor = found[3] or ""
        if own is not None:
            return f"[{found[1]}]({os.path.relpath(own, Path(uri).parent)}{anchor})"
        if not REPOSITORY:
            return found[1]
        kind = "tree" if target.is_dir() else "blob"
        return f"[{found[1]}]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{anchor})"

    return WHOLE_LINK.sub(pointed, markdown)


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Take the backslash away that keeps a bar from ending a table's cell: in code it would be seen here, and on GitHub
    it is not. Mark tables of three columns or more, which a phone shows as blocks."""
    html = re.sub(r"<table>(?=\s*<thead>\s*<tr>(?:\s*<th[^>]*>.*?</th>){3})", "<table data-wide>", html, flags=re.S)
    return CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Leave out what has each reader's browser ask GitHub for the number of stars, fit tables, and load the script of
    diagrams where there is one."""
    script = ""
    if 'class="mermaid"' in output:
        script = f'<script src="{os.path.relpath("assets/mermaid.min.js", page.url or ".")}"></script>'
    output = output.replace('data-md-component="source"', "").replace("</head>", f"{STYLE}{script}</head>", 1)
    return output


def on_post_build(*, config: Any) -> None:
    """Add mermaid, and write llms.txt (llmstxt.org): the table of contents with the addresses of the pages' sources."""
    site = Path(config.site_dir)
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    raw = REPOSITORY.replace("github.com", "raw.githubusercontent.com")
    base = f"{raw}/main/" if raw else f"{(config.site_url or '').rstrip('/')}/"
    prefix = f"{base}docs/" if raw else base
    text = LINK.sub(lambda found: f"{prefix}{found[1]}".replace("/docs/../", "/").replace("/../", "/"), text)
    (site / "llms.txt").write_text(text, encoding="utf-8")
    for path in site.glob("assets/javascripts/bundle.*.js"):  # never a script of another host
        path.write_text(path.read_text(encoding="utf-8").replace(CDN, "assets/mermaid.min.js"), encoding="utf-8")
    if (site / "assets").is_dir() and (script := fetch_mermaid(ROOT / "build")) is not None:
        shutil.copy(script, site / "assets" / "mermaid.min.js")


def fetch_mermaid(folder: Path) -> Path | None:
    """Return the script of mermaid, fetched from npm once and checked; `None` where it cannot be fetched."""
    script = folder / "mermaid.min.js"
    if not script.exists():
        folder.mkdir(exist_ok=True)
        npm = shutil.which("npm")
        command = [npm or "npm", "pack", "--silent", MERMAID, "--pack-destination", str(folder)]
        done = subprocess.run(command, capture_output=True, check=False, cwd=folder) if npm else None
        package = folder / f"{MERMAID.replace('@', '-')}.tgz"
        if done is None or done.returncode or not package.exists():
            log.info("npm cannot fetch %s: the site shows diagrams as text", MERMAID)
            return None
        digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
        if digest != MERMAID_SHA512:
            raise SystemExit(f"{MERMAID} is not the package that scripts/site.py names: its SHA-512 is {digest}")
        with tarfile.open(package) as packed:
            source = packed.extractfile("package/dist/mermaid.min.js")
            assert source is not None
            script.write_bytes(source.read())
    return script

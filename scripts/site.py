"""Hooks of mkdocs (see mkdocs.yml): the navigation, and links from docs/ into the rest of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
CELL = re.compile(r"<td[ >].*?</td>", re.DOTALL)
STYLE = "<style>.md-typeset td code{word-break:normal}</style>"
SECTION = re.compile(r"^## (.+)$|^- \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Make the navigation from docs/README.md: a section for each heading, a page for each item. What it does not name
    is put beside the page that its folder begins with: a decision under Decisions. Outside docs/, it is linked."""
    nav: list[dict[str, Any]] = [{"Home": "README.md"}]
    for heading, title, page in SECTION.findall((DOCS / "README.md").read_text(encoding="utf-8")):
        if heading:
            nav.append({heading: []})
            continue
        pages: list[Any] = next(iter(nav[-1].values()))
        if page.startswith("../"):  # outside docs/, so no page of the site
            page = f"{config.repo_url.rstrip('/')}/blob/main/{page.removeprefix('../')}"
        pages.append({title: [page, *_beside(page)] if page == "adr/README.md" else page})
    config.nav = nav
    return config


def _beside(index: str) -> list[str]:
    """Return the other pages of a folder, its own folders' among them."""
    found = sorted((DOCS / index).parent.rglob("*.md"))
    return [str(path.relative_to(DOCS)) for path in found if path != DOCS / index]


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links that leave docs/ at the repository."""
    here = (DOCS / page.file.src_uri).parent

    def pointed(found: re.Match[str]) -> str:
        target = (here / found[1]).resolve()
        if target.is_relative_to(DOCS) and target.suffix:
            return found[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/main/{target.relative_to(DOCS.parent)}{found[2] or ''}"

    return LINK.sub(pointed, markdown)


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Take the backslash away that keeps a bar from ending a table's cell: in code it would be seen here, and on GitHub
    it is not."""
    return CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Leave out what has each reader's browser ask GitHub for the number of stars, and keep names in tables whole."""
    return output.replace('data-md-component="source"', "").replace("</head>", f"{STYLE}</head>", 1)


def on_post_build(*, config: Any) -> None:
    """Write llms.txt (llmstxt.org): the table of contents with the addresses of the pages' sources."""
    raw = config.repo_url.replace("github.com", "raw.githubusercontent.com").rstrip("/")
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    text = LINK.sub(lambda found: f"{raw}/main/docs/{found[1]}".replace("/docs/../", "/"), text)
    (Path(config.site_dir) / "llms.txt").write_text(text, encoding="utf-8")

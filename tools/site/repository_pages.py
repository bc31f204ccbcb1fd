"""Files and folders of the repository as pages of the site, under `source/`, for the links of docs/ that lead to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?=(?:#[^)\s]*)?\))")
_LANGUAGES = {".md": "markdown", ".py": "python", ".pyi": "python", ".toml": "toml", ".yml": "yaml", ".json": "json", ".sh": "bash"}
_FENCE = "`" * 8
_LARGEST_BYTES = 200_000


def with_site_links(text: str, directory: Path) -> str:
    """The text of a page with links to the site's pages.

    Args:
        text: Markdown, with links relative to `directory`.
        directory: of the page in the repository: its top, docs/ or a folder in it. On the site the top and docs/ are one.
    """
    place = directory.relative_to(DOCS).as_posix() if directory.is_relative_to(DOCS) else "."

    def lead(match: re.Match[str]) -> str:
        target = (directory / match["path"]).resolve()
        if not target.is_relative_to(ROOT):
            return match["path"]
        if target.is_relative_to(DOCS):
            page = target.relative_to(DOCS).as_posix()
        else:
            page = "index.md" if target == ROOT / "README.md" else _page_of(target)
        return posixpath.relpath(page, place)

    return _LINK.sub(lead, text)


def repository_pages(pages: Iterable[Path]) -> dict[str, str]:
    """Pages of the site for what the given Markdown files link to outside docs/, by name; folders with all that is in them."""
    found: dict[str, str] = {}
    for page in pages:
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / match["path"]).resolve()
            if target.exists() and target.is_relative_to(ROOT) and not target.is_relative_to(DOCS) and target != ROOT / "README.md":
                found.update(_pages(target))
    return found


def _page_of(path: Path) -> str:
    """The page of a file or folder."""
    name = path.relative_to(ROOT).as_posix()
    return f"source/{name}/index.md" if path.is_dir() else f"source/{name}.md"


def _pages(path: Path) -> Iterator[tuple[str, str]]:
    """The page of a file; of a folder, and of all that is in it."""
    title = f"# `{path.relative_to(ROOT).as_posix()}`\n\n"
    head = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\n---\n{title}"
    if path.is_dir():
        children = [child for child in sorted(path.iterdir()) if _is_shown(child)]
        lines = [
            f"- [`{child.name}{'/' * child.is_dir()}`]({child.name}/index.md)"
            if child.is_dir()
            else f"- [`{child.name}`]({child.name}.md)"
            for child in children
        ]
        yield _page_of(path), head + "\n".join(lines) + "\n"
        for child in children:
            yield from _pages(child)
    else:
        text = path.read_text(encoding="utf-8")
        yield _page_of(path), f"{head}{_FENCE}{_LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{_FENCE}\n"


def _is_shown(path: Path) -> bool:
    """Whether a page shows what is there: no caches, links, or what is no text."""
    if path.name.startswith((".", "__pycache__")) or path.is_symlink():
        return False
    if path.is_dir():
        return any(_is_shown(child) for child in path.iterdir())
    return path.suffix in {*_LANGUAGES, ".txt", ".csv"} and path.stat().st_size <= _LARGEST_BYTES

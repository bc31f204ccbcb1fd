"""What the documentation site does with the pages of docs/: MkDocs calls these functions, mkdocs.yml names this file.

The pages are Markdown that GitHub shows, too. So this is done here, and not in them:

- `README.md` is the first page. Reference pages are generated from the code; none of them is a file of the repository.
- A link to a file or folder outside docs/ leads to a page that shows it: the site works offline and names no repository.
- Formulas between dollar signs become MathML, which browsers draw without a script and without a font from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulas import with_formulas
from markdown.extensions import Extension
from mkdocs.structure.files import File
from pymdownx.slugs import slugify
from reference_pages import reference_pages
from repository_pages import DOCS, ROOT, repository_pages, with_site_links

if TYPE_CHECKING:
    from markdown import Markdown
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FIRST_PAGE = "index.md"
WIDE_PAGES = (FIRST_PAGE, "comparison.md")
"""These have a picture of 130 columns, or tables of eight: room for them instead of lists beside the text."""


class _TwoSpaces(Extension):
    """Lists in lists by two spaces, as in CommonMark, where Python-Markdown wants four."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Set what an indentation is, for parsers that are built with it: so before any other extension."""
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the names that GitHub gives them, so that links to them work in both."""
    config.markdown_extensions.insert(0, _TwoSpaces())
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slugify(case="lower")}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, the reference, and what pages link to outside docs/."""
    readme = ROOT / "README.md"
    pages = {FIRST_PAGE: readme.read_text(encoding="utf-8")}
    pages |= reference_pages()
    pages |= repository_pages([readme, *sorted(DOCS.rglob("*.md"))])
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of a page lead to pages of the site."""
    name = page.file.src_uri
    if name in WIDE_PAGES:
        page.meta["hide"] = ["navigation", "toc"]
    if name.startswith(("reference/", "source/")):  # generated, with links as they should be
        return markdown
    return with_site_links(markdown, ROOT if name == FIRST_PAGE else (DOCS / name).parent)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas of a page become MathML."""
    return with_formulas(html)

"""The documentation site: every page is in its navigation, its reference covers what the code offers, and it can be built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from command_page import command_page, commands
from file_page import file_page, schemas
from python_page import public_names, python_page
from repository.doc_outputs import FILES, ROOT
from repository_pages import repository_pages, with_site_links

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = import_module("yaml").safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
GENERATED = {"index.md", "reference/commands.md", "reference/python.md", "reference/files.md"}


def pages_of(navigation: Any) -> Iterator[str]:
    for entry in navigation:
        for where in entry.values():
            yield from [where] if isinstance(where, str) else pages_of(where)


def test_navigation_has_every_page_once() -> None:
    """If this fails for a new page of docs/, give it a place in `nav` of mkdocs.yml."""
    assert sorted(pages_of(SETTINGS["nav"])) == sorted({*GENERATED, *(name.removeprefix("docs/") for name in FILES if "/" in name)})


def test_nothing_of_the_site_comes_from_a_network() -> None:
    assert SETTINGS["theme"]["font"] is False
    named = [*SETTINGS["extra"]["polyfills"], *SETTINGS["extra_css"], *SETTINGS.get("extra_javascript", ())]
    assert [name for name in named if not (ROOT / "docs" / name).is_file()] == []


def test_every_command_is_on_its_page_with_all_options() -> None:
    page = command_page()
    sections = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(commands()) >= {"schedc compile", "schedc export torch"}
    for name, command in commands().items():
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("-")}
        assert {option for option in options if option not in sections[name]} == set(), name
        assert command.help, name


def test_every_argument_and_option_says_what_it_is() -> None:
    silent = [
        f"{name} {parameter.opts}" for name, command in commands().items() for parameter in command.params if not parameter.help
    ]
    assert silent == []


def test_all_that_is_public_is_on_the_page_of_python_with_its_docstring() -> None:
    page = python_page()
    for name, thing in public_names().items():
        assert f"### `{name.rpartition('.')[2]}`" in page
        assert (thing.__doc__ or "").strip(), name
    assert "compile_job(" in page and "**Args**" in page


def test_every_key_of_every_file_is_on_the_page_of_files() -> None:
    page = file_page()
    for title, schema in schemas().items():
        keys = {key for section in schema["$defs"].values() for key in section.get("properties", ())}
        assert keys
        assert {key for key in keys if f"| `{key}` |" not in page} == set(), title


def test_links_out_of_docs_lead_to_pages_that_exist() -> None:
    pages = repository_pages(ROOT / name for name in FILES)
    for name in FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?:\.\./)*(source/[^)#]+)", with_site_links(text, (ROOT / name).parent)):
            assert link in pages, f"{name}: {link}"
    assert "schedc/ir" in pages["source/schedc/ir/index.md"]


def test_a_link_is_led_to_the_site() -> None:
    text = "[a](../README.md#a) [b](other.md#b) [c](../schedc/ir/ops.py) [d](../schedc/ir) [e](https://example.org/x.md) [f](#f)"
    assert with_site_links(text, ROOT / "docs") == (
        "[a](index.md#a) [b](other.md#b) [c](source/schedc/ir/ops.py.md) [d](source/schedc/ir/index.md) "
        "[e](https://example.org/x.md) [f](#f)"
    )
    deeper = with_site_links("[a](../other.md#b) [b](../../schedc/ir/ops.py)", ROOT / "docs/measurements")
    assert deeper == "[a](../other.md#b) [b](../source/schedc/ir/ops.py.md)"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs MkDocs: `make site`, or pip install '.[docs]'")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    scripts = {
        script
        for page in (tmp_path / "site").rglob("*.html")
        for script in re.findall(r'<(?:script|link)[^>]* (?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
    }
    assert scripts == set()


def tables_of(text: str) -> Iterator[list[list[str]]]:
    """The tables of a page as rows of cells, without the line below the heads."""
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
        yield [rows[0], *rows[2:]]


def test_every_cell_of_the_comparison_has_a_verdict_and_its_source() -> None:
    versions, *features = tables_of((ROOT / "docs/comparison.md").read_text(encoding="utf-8"))
    letters = {row[0]: set(re.findall(r"(?:^|, )([A-Z])/? `", row[2])) for row in versions[1:]}
    assert len(features) > 3
    for heads, *rows in features:
        assert heads[1:] == list(letters)
        for feature, *cells in rows:
            for project, cell in zip(heads[1:], cells, strict=True):
                found = re.match(r"\*\*(yes|no|partly|not found)\*\*", cell)
                assert found, f"{feature}: {project}: {cell}"
                sources = re.findall(r"`([^`]*[/:.][^`]*)`|\]\(([^)]+)\)", cell)
                assert sources or found[1] == "not found", f"{feature}: {project}: no source"
                used = {source[0].partition(":")[0] for source in sources if re.match(r"[A-Z]:", source[0])}
                assert used <= letters[project] or "'s `" in cell, f"{feature}: {project}: which file is {used}?"

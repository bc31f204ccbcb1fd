"""README and docs show what the tool prints; every command, link and file in them exists; what can be named is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from repository.doc_outputs import FILES, ROOT, commands_of, written

from schedc.frontend.job_file import job_schema
from schedc.ir.plan import BoundName
from schedc.solvers.common.method import Method
from schedc.solvers.driver.registry import methods

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OF_OTHERS = "comparison.md"
"""This page names files of other repositories."""
MOST_LINES = 250
SHOWING = [name for name in FILES if commands_of((ROOT / name).read_text(encoding="utf-8"))]


def test_there_are_outputs_to_compare() -> None:
    assert {"README.md", "docs/plan-file.md", "docs/torch.md"} <= set(SHOWING)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != "docs/torch.md" else name for name in SHOWING]
)
def test_what_a_page_shows_is_what_the_tool_prints(name: str, tmp_path: Path) -> None:
    """If this fails, look at the difference and run `python tests/support/repository/doc_outputs.py`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert written(text, tmp_path) == text


def test_another_output_is_noticed(tmp_path: Path) -> None:
    text = "before\n<!-- output: echo one; echo two >&2 -->\n\n```text\nthree\n```\nafter\n"
    assert written(text, tmp_path) == text.replace("three", "one\ntwo")


def test_a_table_is_written_too(tmp_path: Path) -> None:
    text = "before\n<!-- output: echo '| a |' -->\n\n| b |\n| c |\n\n| d |\n"
    assert written(text, tmp_path) == text.replace("| b |\n| c |", "| a |")


def test_commands_of_make_demo_are_those_of_the_readme() -> None:
    """The picture in the README is the one that `make demo` prints."""
    demo = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert demo is not None
    made = [line.strip().removeprefix("$(BIN)/") for line in demo[1].splitlines() if "schedc" in line]
    run = "\n".join(commands_of((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(made) == 2
    assert all(command in run for command in made)


@pytest.mark.parametrize("name", FILES)
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    assert list(dead_links(ROOT / name)) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A title, *of* `code`\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-title-of-code) [b](none.py) [c](other.md#b) [d](https://example.org) `tests/none.py`\n", encoding="utf-8"
    )
    assert list(dead_links(page)) == ["none.py", "other.md#b", "tests/none.py"]


def test_what_can_be_named_is_on_the_pages() -> None:
    """Every method, bound and key of the job, so that a new one is not forgotten."""
    keys = {key for section in job_schema()["$defs"].values() for key in section.get("properties", ())}
    bounds = {str(name) for name in BoundName}
    names = {
        ("job-file.md", "topology-and-profile.md", "graphs.md"): keys,
        ("plan-file.md",): bounds,
        ("compile.md",): {*methods(Method)},
        ("bounds.md",): bounds,
    }
    missing = {}
    for pages, expected in names.items():
        text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
        code = " ".join(re.findall(r"`([^`\n]+)`", text))
        missing[pages] = expected.difference(re.findall(r"[\w-]+", code))
    assert missing == {pages: set() for pages in names}


def test_what_the_readme_of_a_folder_names_is_in_it() -> None:
    """Folders and files, at the head of a line of its list."""
    for folder in ("schedc", "models", "solvers", "runtime", "tests"):
        listed = re.findall(r"^ *- (`[^:]*`):", (ROOT / folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
        names = [name for each in listed for name in re.findall(r"`(\w[\w.]*)`", each)]
        assert len(names) > 3, folder
        there = {path.name for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts}
        assert [name for name in names if name not in there] == [], folder


def test_no_page_is_too_long_to_read() -> None:
    """If this fails, divide the page by its readers: how to, reference, method, measurements."""
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in FILES if name != "CHANGELOG.md"}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def dead_links(page: Path) -> Iterator[str]:
    """The links of a page to files or headings that do not exist, and the files of the repository that it names and that do not."""
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and (not target.exists() or (heading and heading not in headings(target))):
            yield link
    if page.name == OF_OTHERS:
        return
    for path in re.findall(r"`((?:benchmarks|docs|examples|schedc|tests)/[\w/.-]+\.\w+)`", text):
        if not (ROOT / path).exists():
            yield path


def headings(page: Path) -> set[str]:
    """What a link to a place in the page may name, as GitHub makes it of headings."""
    text = page.read_text(encoding="utf-8")
    titles = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {*titles, *re.findall(r'<a id="([^"]+)"', text)}

"""README and docs show what the tool prints; every command in them exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from doc_outputs import FILES, ROOT, commands_of, written

if TYPE_CHECKING:
    from pathlib import Path

SHOWING = [name for name in FILES if commands_of((ROOT / name).read_text(encoding="utf-8"))]


def test_there_are_outputs_to_compare() -> None:
    assert {"README.md", "docs/formats.md", "docs/torch.md"} <= set(SHOWING)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name == "README.md" else name for name in SHOWING])
def test_what_a_page_shows_is_what_the_tool_prints(name: str, tmp_path: Path) -> None:
    """If this fails, look at the difference and run `python tests/support/doc_outputs.py`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert written(text, tmp_path) == text


def test_another_output_is_noticed(tmp_path: Path) -> None:
    text = "before\n<!-- output: echo one; echo two >&2 -->\n\n```text\nthree\n```\nafter\n"
    assert written(text, tmp_path) == text.replace("three", "one\ntwo")


def test_commands_of_make_demo_are_those_of_the_readme() -> None:
    """The picture in the README is the one that `make demo` prints."""
    demo = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert demo is not None
    made = [line.strip().removeprefix("$(BIN)/") for line in demo[1].splitlines() if "schedc" in line]
    run = "\n".join(commands_of((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(made) == 2
    assert all(command in run for command in made)

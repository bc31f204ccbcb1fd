"""Programs in the docs: the Python blocks of a page are one program, and the text block after one is what that one prints.

`python tests/support/doc_programs.py` writes what they print now.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/api.md",)

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)(?=^```$))?", re.DOTALL | re.MULTILINE)


def programs_of(text: str) -> list[str]:
    """The blocks of the program."""
    return [match["code"] for match in _BLOCK.finditer(text)]


def with_outputs(text: str, directory: Path) -> str:
    """The text with what its blocks print now.

    Args:
        text: of a Markdown file.
        directory: an empty one, where the program runs beside the examples.
    """
    (directory / "examples").symlink_to(ROOT / "examples")
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(match: re.Match[str]) -> str:
        out = StringIO()
        with redirect_stdout(out):
            exec(compile(match["code"], "a block of the page", "exec"), names)
        block = f"```python\n{match['code']}```\n"
        if out.getvalue() and match["shown"] is None:
            raise RuntimeError(f"what this prints is not shown: {match['code']}")
        return block if match["shown"] is None else f"{block}\n```text\n{out.getvalue()}"

    with chdir(directory):
        return _BLOCK.sub(run, text)


def _main() -> None:
    for name in PAGES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        with TemporaryDirectory() as directory:
            after = with_outputs(before, Path(directory))
        path.write_text(after, encoding="utf-8")
        sys.stdout.write(f"{name}: {'written' if after != before else 'as it is'}{os.linesep}")


if __name__ == "__main__":
    _main()

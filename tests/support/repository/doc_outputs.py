"""What README and docs show of the tool's output: written there by the commands and programs that print it, and compared by a test.

A marker `<!-- output: COMMAND -->` is before a block of code, or a table, with what the bash command prints, errors included.
The commands of a file run one after another in one directory, where `examples`, `benchmarks`, `tools` and an empty `build` are;
`schedc` and `python` run this tree's code. The Python blocks of a page of `PROGRAMS` are one program, and the text block after one
is what that one prints. `python tests/support/repository/doc_outputs.py` runs them all and writes what has changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *_PAGES)
PROGRAMS = ("docs/api.md", "docs/slices-and-split-head.md", "docs/time-to-loss.md")

_BLOCK = re.compile(
    r"(?P<head><!-- output:\s(?P<command>(?:(?!-->).)*?)\s*-->\n+(?P<code>```\w*\n)?)"
    r"(?P<shown>(?(code).*?|(?:\|[^\n]*\n)+))(?P<end>(?(code)^```$))",
    re.DOTALL | re.MULTILINE,
)
_PROGRAM = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)(?=^```$))?", re.DOTALL | re.MULTILINE)
_LIMIT_S = 240


def commands_of(text: str) -> list[str]:
    """The commands whose outputs the text shows."""
    return [match["command"] for match in _BLOCK.finditer(text)]


def written(text: str, directory: Path) -> str:
    """The text with what its commands print now.

    Args:
        text: of a Markdown file.
        directory: an empty one, where the commands run.
    """
    for name in ("examples", "benchmarks", "tools"):
        (directory / name).symlink_to(ROOT / name)
    (directory / "build").mkdir()
    return _BLOCK.sub(lambda match: f"{match['head']}{_printed(match['command'], directory)}{match['end']}", text)


def _printed(command: str, directory: Path) -> str:
    """What the command prints, without spaces at the ends of lines."""
    python = shlex.quote(sys.executable)
    schedc = f'schedc() {{ {python} -m schedc "$@"; }}\npython() {{ {python} "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"{schedc}\n{command}"],
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "130",
            # Compiled kernels are kept where the suite keeps them, so that not every command compiles them again.
            **{name: value for name, value in os.environ.items() if name == "NUMBA_CACHE_DIR"},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=_LIMIT_S,
        check=False,
    )
    if not done.stdout or "Traceback" in done.stdout:
        raise RuntimeError(f"{command}: prints nothing that could be shown: {done.stdout!r}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def programs_of(text: str) -> list[str]:
    """The blocks of the program."""
    return [match["code"] for match in _PROGRAM.finditer(text)]


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
        return _PROGRAM.sub(run, text)


def _main() -> None:
    for name in FILES:
        path = ROOT / name
        before = after = path.read_text(encoding="utf-8")
        for shows, write in ((bool(commands_of(before)), written), (name in PROGRAMS, with_outputs)):
            if shows:
                with TemporaryDirectory() as directory:
                    after = write(after, Path(directory))
        if after != before:
            path.write_text(after, encoding="utf-8")
        if commands_of(before) or name in PROGRAMS:
            sys.stdout.write(f"{name}: {'written' if after != before else 'as it is'}\n")


if __name__ == "__main__":
    _main()

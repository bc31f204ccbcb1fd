"""What README and docs show of the tool's output: written there by the commands that print it, and compared by a test.

A marker `<!-- output: COMMAND -->` is before a block of code with what the bash command prints, standard error included.
The commands of a file run one after another in one directory, where `examples`, `benchmarks` and an empty `build` are; `schedc` and
`python` run this tree's code.
`python tests/support/doc_outputs.py` runs them all and writes what has changed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
_PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *_PAGES)

_BLOCK = re.compile(
    r"(?P<head><!-- output:\s(?P<command>.*?)\s*-->\n+```\w*\n)(?P<shown>.*?)(?P<end>^```$)", re.DOTALL | re.MULTILINE
)
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
    for name in ("examples", "benchmarks"):
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


def _main() -> None:
    for name in FILES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        if commands_of(before):
            with TemporaryDirectory() as directory:
                after = written(before, Path(directory))
            if after != before:
                path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{name}: {'written' if after != before else 'as it is'}\n")


if __name__ == "__main__":
    _main()

"""The pictures of docs/plots.md, by the commands that the page shows. Run it as `python tools/pictures/plots.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "compile examples/pipemorph-4x12/job.toml -o {scratch}/plan.json --method zb-h1 --quiet",
    "plot {scratch}/plan.json -o {pictures}/plan.svg --transfers",
    "sweep examples/m70-2dc/sweep.toml -o {scratch}/table.csv --quiet",
    "plot {scratch}/table.csv -o {pictures}/curves.svg --width 5.5",
)


def draw(pictures: Path) -> None:
    """Draw them into a folder."""
    with TemporaryDirectory() as scratch:
        for command in COMMANDS:
            words = command.format(scratch=scratch, pictures=pictures).split()
            subprocess.run([sys.executable, "-m", "schedc", *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    draw(ROOT / "docs" / "pictures")

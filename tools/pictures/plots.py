"""The pictures of docs/plots.md and docs/measurements/clusters.md, by the commands that the pages show.

CrossPipe's figure 9 takes some minutes. Run it as `python tools/pictures/plots.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "-m schedc compile examples/pipemorph-4x12/job.toml -o {scratch}/plan.json --method zb-h1 --quiet",
    "-m schedc plot {scratch}/plan.json -o {pictures}/plan.svg --transfers",
    "-m schedc sweep examples/m70-2dc/sweep.toml -o {scratch}/table.csv --quiet",
    "-m schedc plot {scratch}/table.csv -o {pictures}/curves.svg --width 5.5",
    "benchmarks/tune/two_sites.py --time-limit 4 --csv {scratch}/sites.csv",
    "-m schedc plot {scratch}/sites.csv -o {pictures}/two-sites.svg --x bandwidth --by across_sites --by latency --width 5.5",
)


def draw(pictures: Path) -> None:
    """Draw them into a folder."""
    with TemporaryDirectory() as scratch:
        for command in COMMANDS:
            words = command.format(scratch=scratch, pictures=pictures).split()
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    draw(ROOT / "docs" / "pictures")

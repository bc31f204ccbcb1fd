"""How long a newcomer waits: from a name to a plan, and from a small PyTorch model to a plan and 20 steps of training.

Makes a fresh virtual environment, installs schedc there as `pip install` does, and runs the commands of docs/first-plan.md in an
empty folder with an empty home, so that nothing is compiled or cached. Prints each command with the seconds that it took, and the
sum of both paths. Packages come from where pip finds them; with a slow network, most of the time is theirs.

Run it as `python benchmarks/five_minutes.py [--time-limit 20s] [--keep FOLDER]`. Exit status 1: a command failed, or a path took
more than five minutes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 300.0
INSTALL = ("python -m venv venv", f"venv/bin/python -m pip install --quiet -c {ROOT}/constraints.txt")
FROM_A_NAME = (
    'schedc init --model llama3-8b --device h100 --ranks 8 --sites 2 --latency "10 ms" --bandwidth "100 Gb/s" -o job.toml',
    "schedc compile job.toml -o plan.json --time-limit {limit}",
    "schedc show plan.json",
    "schedc report plan.json -o plan.html",
    "schedc verify plan.json --job job.toml",
)
FROM_A_MODEL = (
    "schedc profile --model profile_gpt:model -o gpt.json",
    "schedc init --profile gpt.json --ranks 2 --microbatches 8 -o gpt.toml",
    "schedc compile gpt.toml -o gpt.plan.json --time-limit {limit}",
    "schedc report gpt.plan.json -o gpt.html",
    "torchrun --standalone --nproc-per-node 2 train_profiled.py --model profile_gpt:model --plan gpt.plan.json --steps 20",
)
PATHS = {
    "from a name": (INSTALL[0], f"{INSTALL[1]} {ROOT}", *FROM_A_NAME),
    "from a model": (f"{INSTALL[1]} '{ROOT}[runtime]'", *FROM_A_MODEL),
}


def main() -> int:
    """Run both paths and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--time-limit", default="20s", help="of each compile")
    parser.add_argument("--keep", type=Path, help="work in this new folder, and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary, "work")
        folder.mkdir()
        for name in ("profile_gpt.py", "train_profiled.py"):
            (folder / name).write_bytes((ROOT / "examples" / name).read_bytes())
        return _run(folder.resolve(), options.time_limit)


def _run(folder: Path, limit: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = kept | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "130"}
    environment["PATH"] = f"{folder / 'venv' / 'bin'}:{environment['PATH']}"
    table = Table(title="Seconds that a newcomer waits")
    table.add_column("command")
    table.add_column("s", justify="right")
    failed = False
    for path, commands in PATHS.items():
        sum_s = 0.0
        for command in (each.format(limit=limit) for each in commands):
            begun_s = time.monotonic()
            done = subprocess.run(
                shlex.split(command),
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
            )
            taken_s = time.monotonic() - begun_s
            sum_s += taken_s
            print(f"$ {command}\n{done.stdout}", file=sys.stderr, flush=True)
            table.add_row(
                escape(command.replace(f"{ROOT}", ".")), f"{taken_s:.1f}" if not done.returncode else f"status {done.returncode}"
            )
            failed |= bool(done.returncode)
        table.add_row(f"[bold]{path}", f"[bold]{sum_s:.1f}", end_section=True)
        failed |= sum_s > MOST_S
    Console(width=150).print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""What commands take on a fresh machine (no compiled code in the cache), on one that has it, and where nothing can be kept.

Run it as `python benchmarks/compiler/cold_start.py [--before DIRECTORY] [--runs N]`; DIRECTORY is another checkout, to be compared.
Each run is a process of its own; checkouts and states take turns. Prints the medians of wall time and, in brackets, of CPU time, in
seconds, that of child processes included.

- cold: an empty cache
- warm: the cache as a run of the local searches left it
- read-only: neither cache nor home can be written
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
LARGER = """
[pipeline]
ranks = 8
microbatches = 32

[profile]
forward = "10 ms"
backward_input = "11 ms"
backward_weight = "9 ms"
activation = "1 GiB"
activation_after_input = "512 MiB"
message = "64 MiB"

[memory]
limit = "8 GiB"

[topology]
sites = [4, 4]

[topology.between]
latency = "5 ms"
transfer = "7 ms"
"""
STATES = ("cold", "warm", "read-only")
LOCAL_SEARCHES = ("local{rounds=1}", "polish{rounds=1}")


def main() -> None:
    """Time all commands in all states and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--runs", type=int, default=5, help="of each command in each state")
    parser.add_argument("--only", default="", help="titles of commands, separated by commas")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve()} if options.before else {}
    checkouts["after"] = ROOT
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = _commands(folder)
        for label, checkout in checkouts.items():
            warm = _environment(checkout, folder / f"warm-{label}")
            for method in LOCAL_SEARCHES:
                _seconds(("compile", *commands["8 x 32"][1:], "--method", method, "--time-limit", "60s"), warm)
            _seconds(commands["simulate"], warm)
        print("command", *(f"{label} {state}" for label in checkouts for state in STATES), sep=" | ")
        for title, command in commands.items():
            if options.only and title not in options.only.split(","):
                continue
            times: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for run in range(options.runs):
                for state in STATES:
                    for label, checkout in checkouts.items():
                        cache = {
                            "cold": folder / f"cold-{label}-{title}-{run}",
                            "warm": folder / f"warm-{label}",
                            "read-only": folder / "file" / "below",
                        }[state]
                        took = _seconds(command, _environment(checkout, cache))
                        times.setdefault((label, state), []).append(took)
            cells = []
            for label in checkouts:
                for state in STATES:
                    wall_s, cpu_s = (median(column) for column in zip(*times[label, state], strict=True))
                    cells.append(f"{wall_s:.1f} ({cpu_s:.1f})")
            print(title, *cells, sep=" | ", flush=True)


def _commands(folder: Path) -> dict[str, tuple[str, ...]]:
    """The commands' arguments; makes the job and the plan that they read."""
    (folder / "file").write_text("")
    (folder / "larger.toml").write_text(LARGER)
    plan, job = folder / "plan.json", folder / "larger.toml"
    _seconds(("compile", str(job), "-o", str(plan), "--method", "1f1b"), _environment(ROOT, folder / "unused"))
    output = ("-o", str(folder / "made.json"), "--quiet")
    examples = {name: str(ROOT / "examples" / name / "job.toml") for name in ("m70-2dc", "pipemorph-4x12", "zero-bubble")}
    return {
        "8 x 32": ("compile", str(job), *output, "--time-limit", "20s"),
        **{name: ("compile", path, *output, "--time-limit", "20s") for name, path in examples.items()},
        "help": ("--help",),
        "show": ("show", str(plan)),
        "simulate": ("simulate", str(plan)),
    }


def _environment(checkout: Path, cache: Path) -> dict[str, str]:
    """A process of this checkout with this cache, and no other place to write."""
    return {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "NUMBA_CACHE_DIR": str(cache),
        "HOME": str(cache),
        "XDG_CACHE_HOME": str(cache),
    }


def _seconds(arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    begun_s, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "schedc", *arguments]
    elsewhere = tempfile.gettempdir()  # `python -m` would take the package from here, whatever PYTHONPATH says
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - begun_s, os.times()
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return wall_s, after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main()

"""Whether `schedc compile` keeps its time limit at any size, and its best plan whenever it is interrupted.

Run it as `python benchmarks/compiler/limits.py`. Each row is a process of its own. Sizes: the job, the limit, how long the command
took from start to end, its status and its last line; what is too large, or too much for the limit, must be refused at once.
Interruptions: SIGINT and SIGTERM at several moments of `examples/m70-wave/job.toml`; the plan must be there and the last line say
"interrupted".
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = ((8, 16), (64, 1_024), (8, 2_000), (1_000, 20), (5_000, 4), (16_000, 4), (2, 50_000), (2, 1_000_000))
LIMITS_S = (5, 30)
MOMENTS_S = (0.3, 1, 2, 4, 6, 9, 12, 16)
WAVE = Path(__file__).parents[2] / "examples" / "m70-wave" / "job.toml"

JOB = """[pipeline]
ranks = {ranks}
microbatches = {microbatches}
[profile]
forward = "38 ms"
backward_input = "46.5 ms"
backward_weight = "20.5 ms"
activation = "1 GiB"
activation_after_input = "512 MiB"
message = "64 MiB"
[memory]
in_flight = {in_flight}
[topology.within]
latency = "10 us"
bandwidth = "50 GB/s"
"""


def compiled(job: Path, plan: Path, *options: str) -> subprocess.Popen[str]:
    """The command, started."""
    command = [sys.executable, "-m", "schedc", "compile", str(job), "-o", str(plan), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def sizes(folder: Path) -> None:
    """How long each size takes under each limit."""
    print(f"{'ranks':>6} {'microbatches':>12} {'limit':>6} {'took':>7} {'status':>6}  last line")
    for ranks, microbatches in SIZES:
        for limit_s in LIMITS_S:
            job = folder / "size.toml"
            job.write_text(JOB.format(ranks=ranks, microbatches=microbatches, in_flight=min(ranks, microbatches)))
            begun_s = time.perf_counter()
            process = compiled(job, folder / "size.plan.json", "--time-limit", f"{limit_s}s")
            printed, _ = process.communicate()
            took_s = time.perf_counter() - begun_s
            last = printed.splitlines()[-1].replace(str(folder), "")
            print(f"{ranks:>6} {microbatches:>12} {limit_s:>4} s {took_s:>5.1f} s {process.returncode:>6}  {last}", flush=True)


def interruptions(folder: Path) -> None:
    """What is left after each interruption."""
    print(f"\n{'signal':>8} {'at':>7} {'ended after':>12} {'status':>6} {'plan':>5}  last line")
    for number in (signal.SIGINT, signal.SIGTERM):
        for at_s in MOMENTS_S:
            plan = folder / f"{number.name}-{at_s}.plan.json"
            process = compiled(WAVE, plan, "--time-limit", "60s")
            time.sleep(at_s)
            process.send_signal(number)
            sent_s = time.perf_counter()
            printed, _ = process.communicate()
            took_s = time.perf_counter() - sent_s
            last = (printed.splitlines() or [""])[-1].replace(str(folder), "")
            there = "yes" if plan.exists() else "no"
            print(f"{number.name:>8} {at_s:>5} s {took_s:>10.1f} s {process.returncode:>6} {there:>5}  {last}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("sizes", "interruptions"))
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        if only != "interruptions":
            sizes(Path(folder))
        if only != "sizes":
            interruptions(Path(folder))


if __name__ == "__main__":
    main()

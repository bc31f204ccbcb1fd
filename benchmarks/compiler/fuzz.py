"""Random jobs over everything that the formats can say, compiled by every method and checked: what fails, and how much was checked.

Run it as `python benchmarks/compiler/fuzz.py --jobs 1000 --seed 0 --processes 2`. Job number n of a seed is the same everywhere and
always. The jobs are `tests/support/inputs/fuzz_jobs.py`, the checks `tests/support/oracles/fuzz_checks.py`; one job in `--costly`
is small and is also given to the searches, to CP-SAT and MILP, and to brute force, one in `--terminal` to the command line. What
fails is made smaller and written to `--keep`, from where it can go to tests/fuzz_cases. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.fuzz_jobs import job_text, random_job
from inputs.fuzz_shrink import shrink
from oracles.fuzz_checks import SOLVER_OPS, check_job

if TYPE_CHECKING:
    from inputs.fuzz_jobs import Job

MOST_OPS = 40
"""Blocks of a job: enough for several microbatches on several ranks, and few enough for many jobs."""
CHUNK = 100
"""Jobs that a process does before it reports."""


@dataclass(frozen=True)
class Failure:
    """One kind of failure on one job."""

    seed: str
    kind: str
    message: str
    job: Job
    costly: bool
    terminal: bool


@dataclass(frozen=True)
class Chunk:
    """Jobs to do: numbers from begin to end of the seed, and every how many of them are costly or go to the terminal."""

    seed: int
    begin: int
    end: int
    costly: int
    terminal: int


def run_chunk(chunk: Chunk) -> tuple[Counter[str], list[Failure]]:
    """Check the jobs of a chunk; gives what was checked, and of each kind of failure the first."""
    counts: Counter[str] = Counter()
    failures: dict[str, Failure] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chunk.begin, chunk.end):
            seed = f"{chunk.seed}:{number}"
            costly, terminal = number % chunk.costly == 0, number % chunk.terminal == 0
            most = SOLVER_OPS if costly else MOST_OPS
            may = dict.fromkeys(("may_be_open", "may_overlap", "may_be_graph", "may_be_sharded"), True)
            job = random_job(Random(seed), most_ops=most, **may)
            counts["jobs"] += 1
            counts["jobs, costly"] += costly
            counts["jobs, terminal"] += terminal
            for finding in check_job(job_text(job), seed, Path(folder), counts, costly=costly, terminal=terminal):
                counts[f"failed: {finding.kind}"] += 1
                failures.setdefault(finding.kind, Failure(seed, finding.kind, finding.message, job, costly, terminal))
    return counts, list(failures.values())


def shrunk(failure: Failure) -> tuple[Job, str]:
    """The smallest job found that fails in the same way, and what is said of it."""
    with tempfile.TemporaryDirectory() as folder:

        def message(job: Job) -> str | None:
            found = check_job(
                job_text(job), failure.seed, Path(folder), Counter(), costly=failure.costly, terminal=failure.terminal
            )
            return next((finding.message for finding in found if finding.kind == failure.kind), None)

        job = shrink(failure.job, lambda job: message(job) is not None)
        return job, message(job) or failure.message


def case_text(failure: Failure) -> str:
    """The file of a case: what failed, and what it takes to see it, before the smallest job."""
    job, message = shrunk(failure)
    what = f"{failure.kind}: {' '.join(message.split())[:200]}"
    return f"# {what}\n# seed: {failure.seed}\n# costly: {str(failure.costly).lower()}\n{job_text(job)}"


def main() -> int:
    """Run the jobs and print what was checked and what failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first job's number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--costly", type=int, default=100, help="one job in this many goes to the solvers")
    parser.add_argument("--terminal", type=int, default=200, help="one job in this many goes to the command line")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where the jobs that fail are written")
    options = parser.parse_args()
    ends = range(options.first, options.first + options.jobs, CHUNK)
    last = options.first + options.jobs
    chunks = [Chunk(options.seed, begin, min(begin + CHUNK, last), options.costly, options.terminal) for begin in ends]
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    begun = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for number, (checked, failures) in enumerate(pool.imap(run_chunk, chunks)):
            counts.update(checked)
            for failure in failures:
                if failure.kind not in kinds:
                    kinds.add(failure.kind)
                    keep(failure, options.keep)
            if number % 10 == 9 or number + 1 == len(chunks):
                print(f"{counts['jobs']} jobs, {counts['jobs'] / (time.perf_counter() - begun):.1f} a second", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:9}  {name}")
    print(f"{len(kinds)} kinds of failures")
    return 1 if kinds else 0


def keep(failure: Failure, folder: Path) -> None:
    """Make the job smaller, write it, and say so."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^a-z0-9]+", "-", failure.kind.lower()).strip("-") + ".toml")
    path.write_text(case_text(failure), encoding="utf-8")
    print(f"FAILED job {failure.seed}: {failure.kind}: {' '.join(failure.message.split())[:300]}\n  kept as {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

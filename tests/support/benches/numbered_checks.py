"""Numbered checks over processes, for benchmarks: what was checked, and a line for each defect.

A check takes a number and a counter and gives its findings. A process that dies is a defect of the number it was at, and the rest
goes on. `--first` goes on where an earlier run ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from oracles.findings import Finding

    Check = Callable[[int, Counter[str]], list[Finding]]


def run_numbered(check: Check, what: str, description: str) -> int:
    """Read the options of the command line, check that many numbers, print what came of it; the exit status.

    Args:
        check: a module's function, as it goes to other processes.
        what: plural, as `problems`; also the option for how many.
        description: of the program.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(f"--{what}", type=int, default=100, dest="count")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    counts, begun, waiting = Counter[str](), time.perf_counter(), list(range(options.first, options.first + options.count))
    findings = done = 0
    context = multiprocessing.get_context("spawn")
    while waiting:
        with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
            # One at a time for each process, so that a death leaves few numbers in doubt.
            running: dict[Future[tuple[Counter[str], list[Finding]]], int] = {}
            died: list[int] = []
            while waiting or running:
                while waiting and len(running) < options.processes and not died:
                    number = waiting.pop(0)
                    running[pool.submit(_one, check, number)] = number
                if not running:
                    break
                future = next(as_completed(running))
                number = running.pop(future)
                try:
                    counted, found = future.result()
                except BrokenProcessPool:
                    died.append(number)
                    continue
                done += 1
                counts.update(counted)
                for finding in found:
                    findings += 1
                    print(f"FAILED {number}: {finding.kind}: {' '.join(finding.message.split())[:300]}", flush=True)
                if done % 50 == 0:
                    print(f"{done} {what}, {done / (time.perf_counter() - begun):.2f} a second, up to {number}", flush=True)
        if died:
            findings += 1
            print(f"FAILED {' or '.join(map(str, died))}: a process died", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:9}  {name}")
    print(f"{findings} defects in {done} {what} from number {options.first}")
    return 1 if findings else 0


def _one(check: Check, number: int) -> tuple[Counter[str], list[Finding]]:
    """What was checked, and of each kind of defect the first."""
    counts: Counter[str] = Counter()
    return counts, list({finding.kind: finding for finding in reversed(check(number, counts))}.values())

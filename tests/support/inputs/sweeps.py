"""Sweeps of tiny jobs, and a child that answers instead of the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.study.sweep.jobs import Sweep, read_sweep

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
pipeline = { ranks = 2, microbatches = 2 }
profile = { forward = "1 ms", backward_input = "1 ms", backward_weight = "1 ms", activation = "1 GiB" }
topology = { sites = [1, 1], between = { latency = "1 ms" } }
"""

STAND_IN = """
import json, os, pickle, signal, sys, time
from schedc.io.child import serve
def answer(question):
    (microbatches,) = [each.value for each in pickle.loads(question).source.overrides]
    {body}
    return json.dumps({{"status": "planned", "makespan_ns": microbatches}}).encode()
serve(int(sys.argv[2]), answer)
"""
"""A program that answers requests with one value each instead of compiling; `body` may do more for some `microbatches`."""


def sweep_in(folder: Path, text: str, job: str = JOB) -> Sweep:
    """The sweep of the text, of `job.toml` in that folder."""
    (folder / "job.toml").write_text(job)
    path = folder / "sweep.toml"
    path.write_text(text)
    return read_sweep(path)

"""Job files for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.frontend.job import load_job

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.problem import Problem

THREE_RANKS = """
name = "three"
[pipeline]
ranks = 3
microbatches = 4
[profile]
forward = "10 ms"
backward_input = "11 ms"
backward_weight = "9 ms"
"""

M70 = """\
[pipeline]
ranks = 8
microbatches = 16

[profile]
forward = "38 ms"
backward_input = "46.5 ms"
backward_weight = "20.5 ms"
activation = "1 GiB"
activation_after_input = "512 MiB"
message = "64 MiB"

[memory]
limit = "8 GiB"

[topology]
sites = [4, 4]
[topology.within]
latency = "10 us"
bandwidth = "50 GB/s"
[topology.between]
latency = "76 ms"
bandwidth = "0.9 GB/s"
[[topology.link]]
ranks = [1, 2]
latency = "9.5 ms"
transfer = "9.5 ms"

[data_parallel]
size = 4
zero_stage = 1
reduce_scatter = "120 ms"
all_gather = "60 ms"

[objective]
minimize = "makespan"

[solver]
method = "auto"
time_limit = "60 s"
gap = 0.0
seed = 0
"""
"""A job with every section."""


def write_job(directory: Path, text: str, name: str = "job.toml") -> Path:
    """Write the text as a job file."""
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def read_problem(path: Path | str) -> Problem:
    """The problem that the job file at `path` states."""
    return load_job(path).problem

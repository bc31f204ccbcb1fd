"""The problems of a fuzzer's jobs, and what limits of theirs hold."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import TYPE_CHECKING, Any

from inputs.fuzz_jobs import read_extra, write_job
from inputs.shared_links import with_shared_links

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import peak_bytes
from schedc.frontend.job import load_job

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule


def load(text: str, directory: Path) -> Problem:
    """The problem of a job's text, through the front end, with what its `extra` adds."""
    return with_extra(load_job(write_job(text, directory)).problem, read_extra(text))


def with_extra(problem: Problem, extra: dict[str, Any]) -> Problem:
    """The problem with what a job cannot say."""
    if names := extra.get("trunks"):
        links = tuple(dataclasses.replace(link, trunk=names.get(link.trunk, link.trunk)) for link in problem.links)
        parallel = problem.data_parallel
        if parallel is not None and parallel.trunk is not None:
            parallel = dataclasses.replace(parallel, trunk=names.get(parallel.trunk, parallel.trunk))
        problem = dataclasses.replace(problem, links=links, data_parallel=parallel)
    if "vary" in extra:
        random, scale_ns = Random(extra["vary"]), extra.get("scale_ns", 1)

        def each() -> tuple[int, ...]:
            return tuple(scale_ns * random.randint(0, 6) for _ in range(problem.microbatches))

        stages = [
            dataclasses.replace(stage, forward_ns=each(), backward_input_ns=each(), backward_weight_ns=each(), backward_ns=each())
            for stage in problem.stages
        ]
        problem = dataclasses.replace(problem, stages=tuple(stages), in_order=extra["vary"] % 2 == 1)
    return with_shared_links(problem, Random(extra["shared"])) if "shared" in extra else problem


def too_little_memory(problem: Problem) -> bool:
    """Whether a limit does not hold one microbatch, by the compiler's own account."""
    limits = zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True)
    return any(limit is not None and limit < least for limit, least in limits)


def has_room(problem: Problem, schedule: Schedule) -> bool:
    """Whether no rank holds more than its limit, values that wait among it."""
    limits = zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True)
    return all(limit is None or peak <= limit for peak, limit in limits)

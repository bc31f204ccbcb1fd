"""What rank processes run in the tests of `MemoryWatch` where steps do not overlap: plans that ranks go on with, and refusals."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

import schedc
from runs.exchange_runs import builder, optimizer_of
from runs.harness import Run, grid, load, make_batch, make_stages, noting
from schedc.errors import Unsupported
from schedc.runtime.adapt.memory_pressure import MemoryWatch, PressureEvent
from schedc.runtime.adapt.migration import Migration, begin_migration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from schedc.ir import Plan

LEAST = 5
"""How many bytes are to be free."""


def stepped(run: Run, steps: int) -> None:
    """Train, the whole model beside it."""
    for number in range(steps):
        run.clear()
        run.step(number)
        run.descend()


def moved(rank: int, plans: Sequence[Plan], *, fails: bool = False) -> tuple[list[str], list[str], float]:
    """Three watches: in the first rank 0 of each pipeline has too little, so all move; before each of the others all move back.

    In the second and third rank 1 of the first pipeline has too little, the others do not look again, and the watch ends before the
    next step: the move is settled after it.

    Args:
        rank: this process.
        plans: that of before, and those to go on with.
        fails: whether what the job does with a warning fails.

    Returns:
        The names of the plans after each; warnings other than those of memory; the largest error of the weights.
    """
    run, names = Run(plans[0]), list[str]()

    def told(event: object) -> None:
        if fails:
            raise ValueError("the job's own mistake")

    with warnings.catch_warnings(record=True) as heard, run.load() as pipe:
        warnings.simplefilter("always")
        free = [10]
        with MemoryWatch(
            pipe, least_free_bytes=LEAST, free_bytes=lambda: free[0], plans=plans[1:], on_warning=told, look_s=0.002
        ) as watch:
            stepped(run, 2)
            free[0] = 10 if run.rank else 0
            while watch.swap is None:
                time.sleep(0.002)
            dist.barrier()
            stepped(run, 3)
            assert bool(watch.events) == (run.rank == 0)
            assert watch.swap.state == "done", watch.swap.reason
        names.append(pipe.plan.name)
        for _ in range(2):
            back = pipe.swap(plans[0])
            stepped(run, 3)
            assert back.state == "done", back.reason
            free[0], looks = 10, (run.pipeline, run.rank) == (0, 1)
            with MemoryWatch(
                pipe, least_free_bytes=LEAST, free_bytes=lambda: free[0], plans=plans[1:], look_s=0.002 if looks else 1000
            ) as watch:
                stepped(run, 2)
                dist.barrier()
                free[0] = 0
                while looks and watch.swap is None:
                    time.sleep(0.002)
            stepped(run, 3)
            names.append(pipe.plan.name)
        said = sorted({str(one.message) for one in heard if " of memory left, " not in str(one.message)})
        return names, said, max(run.weight_errors())


def refused(rank: int, plan: Plan, given: Sequence[Mapping[str, Any]]) -> str:
    """What a watch says where each process gives something of its own, and that training goes on after it."""
    run, lines = Run(plan), list[str]()

    def unknown() -> int:
        raise Unsupported("nobody knows")

    with run.load() as pipe:
        options = {"least_free_bytes": 0, "free_bytes": lambda: 9, **given[rank]}
        if options["free_bytes"] is None:
            options["free_bytes"] = unknown
        with noting(lines):
            MemoryWatch(pipe, **options)
        stepped(run, 1)
    return lines[0] if lines else "taken"


def with_peers(process: int, plans: Sequence[Plan]) -> tuple[str, int | None, int]:
    """Two pipelines of a swap group, one process of which has too little: the plan then, its first step, how many warnings."""
    pipeline, peers = grid(2, 2)
    free = [10]
    with (
        warnings.catch_warnings(),
        load(plans[0], make_stages(plans[0], pipeline.rank()), pipeline_group=pipeline, swap_group=peers) as pipe,
    ):
        warnings.simplefilter("ignore", RuntimeWarning)
        with MemoryWatch(pipe, least_free_bytes=LEAST, free_bytes=lambda: free[0], plans=plans[1:], look_s=0.002) as watch:
            pipe.step(*make_batch(plans[0], 0))
            free[0] = 0 if process == 2 else 10
            steps = 0
            while pipe.plan.name == plans[0].name and steps < 500:
                pipe.step(*make_batch(plans[0], 0))
                steps += 1
        assert watch.swap is not None
        return pipe.plan.name, watch.swap.step, len(watch.events)


def relieved(rank: int, plan: Plan, path: Path, steps: int, pressed: int | None) -> tuple[list[float], list[int], list[str]]:
    """Rank 0 has too little memory from a step on, and its layers migrate to where `repartition_plan` says.

    Args:
        rank: this one.
        plan: the job's.
        path: of the job.
        steps: how many.
        pressed: before which step; None: never.

    Returns:
        The losses; the numbers of the layers of this rank at the end; what the watch said.
    """
    job, build = schedc.read_job(path), builder(0.0)
    stages, losses, free = build(plan, rank), list[float](), [10]
    optimizer = optimizer_of("adamw", stages)
    lacking, migration = dict[int, int](), None

    def tell(event: PressureEvent) -> None:
        lacking[event.rank] = event.lacking_bytes

    with warnings.catch_warnings(), load(plan, stages) as pipe:
        warnings.simplefilter("ignore", RuntimeWarning)
        with MemoryWatch(pipe, least_free_bytes=LEAST, free_bytes=lambda: free[0], on_warning=tell, look_s=0.002) as watch:
            for step in range(steps):
                if step == pressed and rank == 0:
                    free[0] = LEAST - 2
                    while not lacking:
                        time.sleep(0.002)
                losses.append(pipe.step(*make_batch(plan, step)).item())
                optimizer.step()
                optimizer.zero_grad()
                every: list[Any] = [None] * dist.get_world_size()
                dist.all_gather_object(every, dict(lacking))
                limits = {of: (job.workload.devices[of].capacity_bytes or 0) - size for each in every for of, size in each.items()}
                if limits and migration is None:
                    found = schedc.repartition_plan(pipe.plan, job, memory_limits=limits)
                    migration = begin_migration(pipe, optimizer, found.plan, build=build)
                elif isinstance(migration, Migration):
                    migration.between_steps()
        first, last = pipe.plan.problem.stages[rank].layers or (0, 0)
    return losses, [*range(first, last)], [str(event) for event in watch.events]

"""What rank processes run in the tests of the versions of weights that steps that overlap hold, and of memory that gets tight.

`errors` is in `asynchronous_runs`.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from runs.asynchronous_runs import Way, optimizers_of, oracle_of, trained
from runs.harness import load, make_batch, make_stages, weights_of
from schedc.lower.run import run_of
from schedc.runtime.adapt.memory_pressure import MemoryWatch
from schedc.runtime.asynchronous.weights import StageWeights

if TYPE_CHECKING:
    from schedc.ir import Plan
    from schedc.runtime.adapt.memory_pressure import PressureEvent


def cached(rank: int, plan: Plan, way: Way, steps: int, versions: int) -> tuple[list[float], list[int]]:
    """As `errors`, with room for this many versions of the rank's largest stage.

    Returns:
        The errors; and of a run with room for all and of this one the most bytes of versions, in versions of the largest stage, how
        many have gone to the host, how many ops had to wait for one.
    """
    run = run_of(plan, steps)
    largest = max(sum(weight.nbytes for weight in module.parameters()) for module in make_stages(run, rank).values())
    found, peaks, seen = list[float](), list[int](), (0, 0)
    for limit_bytes in (math.inf, versions * largest):
        stages = make_stages(run, rank)
        optimizers = optimizers_of(stages, way, device_bytes=limit_bytes)
        cache = optimizers.cache
        assert cache is not None
        with load(run, stages, optimizers=optimizers, recompute=way.recompute) as pipe:
            oracle = oracle_of(run, way)
            for number in range(2):
                before = [weight.data for weight in weights_of(stages)]
                values = [weight.clone() for weight in before]
                found += trained(pipe, oracle, number)
                assert all(map(torch.equal, before, values)), "what the job holds of the parameters is its own"
        assert cache.device_bytes == 0
        peaks.append(math.ceil(cache.peak_bytes / largest))
        seen = cache.evicted, cache.waited_for
    return found, [*peaks, *seen]


def pressed(
    rank: int, plan: Plan, tight: Plan | None, *, left: int = 2, threaded: bool = False
) -> tuple[list[float], list[PressureEvent], int, int]:
    """Runs in which memory is taken away from rank 0 with an update in the first, until all ranks go on with `tight`.

    Args:
        rank: this one.
        plan: the period.
        tight: the run or the synchronous plan to go on with; None: there is none, and three runs.
        left: how many versions there is still room for.
        threaded: whether the watch looks in its thread; else with each update, and between two runs.

    Returns:
        The errors; the warnings; by how much versions were above what is left for them afterwards; how many went to the host.
    """
    run, updates, above, warned = run_of(plan, 12), 0, list[int](), False
    stages, oracle = make_stages(run, rank), oracle_of(run, Way())
    version_bytes = sum(weight.nbytes for weight in weights_of(stages))
    optimizers, room_bytes = optimizers_of(stages, Way(), device_bytes=math.inf), 9 * version_bytes
    cache = optimizers.cache
    assert cache is not None

    def updated(*_: object) -> None:
        nonlocal updates, room_bytes
        updates += 1
        if warned or (updates > 5 and watch.events and not threaded):
            above.append(cache.device_bytes - room_bytes)
        if updates == 5 and rank == 0:
            room_bytes = left * version_bytes
        look()

    def look() -> None:
        if not threaded:
            watch.look()
            watch.look()

    for optimizer in optimizers.all:
        optimizer.register_step_post_hook(updated)
    found, number = list[float](), 0
    with load(run, stages, optimizers=optimizers) as pipe, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        plans = [] if tight is None else [tight]
        watch = MemoryWatch(pipe, least_free_bytes=0, free_bytes=lambda: room_bytes - cache.device_bytes, plans=plans, look_s=1e-4)
        with watch if threaded else nullcontext():
            while pipe.plan == run and number < (200 if plans else 3):
                found += trained(pipe, oracle, number)
                warned, number = bool(watch.events), number + 1
                look()
            if plans:
                assert pipe.plan == tight
                assert watch.swap is not None
                assert watch.swap.state == "done"
            if pipe.plan.problem.updates is not None:
                found += trained(pipe, oracle, number)
            else:
                pipe.step(*make_batch(pipe.plan, number))
    return found, watch.events, max(above, default=0), cache.evicted


def versions_held(rank: int, plan: Plan, steps: int) -> dict[int, int]:
    """The most versions of each stage of this rank that a run has at once."""
    run, most = run_of(plan, steps), dict[int, int]()
    stages = make_stages(run, rank)
    optimizers = optimizers_of(stages, Way())
    stage_of = {optimizer: stage for stage in stages for optimizer in optimizers.of(stage)}
    update, delays = StageWeights.update, set[tuple[int, int]]()
    for optimizer, stage in stage_of.items():
        optimizer.register_step_pre_hook(
            lambda one, *_, stage=stage: delays.update((stage, group["delay"]) for group in one.param_groups)
        )

    def counting(weights: StageWeights, step: int, factor: float | None) -> None:
        update(weights, step, factor)
        stage = stage_of[weights._optimizers[0]]
        most[stage] = max(most.get(stage, 1), weights.versions)

    StageWeights.update = counting  # type: ignore[method-assign,assignment]
    try:
        with load(run, stages, optimizers=optimizers) as pipe:
            pipe.step(*make_batch(run, 0))
    finally:
        StageWeights.update = update  # type: ignore[method-assign]
    assert delays == {(stage, run.certificate.delays[stage]) for stage in stages}
    assert not any("delay" in group for optimizer in stage_of for group in optimizer.param_groups)
    return most

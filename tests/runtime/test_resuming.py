"""Checkpoint, another plan, go on: with dropout and a schedule of the learning rate, the losses of one process that never stopped.

Pairs of plans: other numbers of ranks, of processes and of replicas, other placements and orders, ZeRO 0 and 1, B and W apart,
recomputation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from inputs.asynchronous_plans import period_plan
from inputs.few_plans import made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import resume_runs
from torch import bfloat16, float32

from schedc.ir import Versions
from schedc.lower.run import run_of
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir.plan import Plan

BEFORE, STEPS = 3, 6
PLANS: dict[str, tuple[int, Plan]] = {
    "1f1b of 2": (2, made_by("1f1b", 2, counts=[3, 3])),
    "zb-v of 2": (2, made_by("zb-v", 2, counts=[1, 1, 3, 1], placement="wave", chunks=2)),
    "one stage, twice, ZeRO 1": (2, made_by("1f1b", 1, 2, counts=[6], zero=1)),
    "interleaved of 2": (2, made_by("interleaved", 2, counts=[2, 1, 2, 1], placement="loop", chunks=2)),
    "zb-h1 of 4": (4, made_by("zb-h1", 4, counts=[1, 2, 2, 1])),
    "1f1b of 2, twice": (4, made_by("1f1b", 2, 2, counts=[2, 4], zero=0)),
    "zb-v of 2, twice, ZeRO 1": (4, made_by("zb-v", 2, 2, counts=[2, 1, 2, 1], placement="wave", chunks=2, zero=1)),
    "one stage, 4 times, ZeRO 1": (4, made_by("1f1b", 1, 1, counts=[6], zero=1, size=4)),
    "zb-v of 2, twice, FSDP2": (4, made_by("zb-v", 2, 2, counts=[1, 2, 2, 1], placement="wave", chunks=2)),
    "1f1b of 1, twice, FSDP2": (2, made_by("1f1b", 1, 2, counts=[6])),
    "both ways of 4": (4, made_by("chimera", 4, counts=[2, 1, 1, 2], placement="bidirectional")),
}
"""By name; with how many processes it runs."""
NAMES = [*PLANS]
ROUND = [(name, NAMES[(at + 5) % len(NAMES)]) for at, name in enumerate(NAMES)]
"""Each plan once before and once after, and two that jobs do often."""
ROUND += [("1f1b of 2", "zb-v of 2"), ("interleaved of 2", "one stage, twice, ZeRO 1")]
OTHERS = [(one, other) for at, one in enumerate(NAMES) for other in NAMES[at % 3 :: 3] if (one, other) not in ROUND]
OTHERS += [("zb-v of 2, twice, FSDP2", "1f1b of 1, twice, FSDP2")]
"""A third of all others, each plan before some of them and after some; and weights that stay spread, with other neighbours."""


@cache
def expected() -> list[float]:
    return resume_runs.in_one_process(STEPS)


@pytest.fixture(scope="module")
def saved(two: Ranks, four: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each plan, after `BEFORE` steps; the steps before and after it are right."""
    folder = tmp_path_factory.mktemp("resume")
    for number, (name, (processes, plan)) in enumerate(PLANS.items()):
        ranks = two if processes == 2 else four
        for losses in ranks.run(
            resume_runs.resumed, plan, range(BEFORE + 2), path=folder / str(number), recompute=number % 2 == 1, fsdp="FSDP2" in name
        ):
            assert losses == pytest.approx(expected()[: BEFORE + 2], rel=1e-12, abs=0), (name, losses)
    return {name: folder / str(number) for number, name in enumerate(PLANS)}


def goes_on(ranks: dict[int, Ranks], saved: dict[str, Path], before: str, after: str) -> None:
    processes, plan = PLANS[after]
    for losses in ranks[processes].run(resume_runs.resumed, plan, range(BEFORE, STEPS), after=saved[before], fsdp="FSDP2" in after):
        assert losses == pytest.approx(expected()[BEFORE:], rel=1e-12, abs=0), losses


@pytest.mark.parametrize(("before", "after"), ROUND)
def test_another_plan_goes_on(two: Ranks, four: Ranks, saved: dict[str, Path], before: str, after: str) -> None:
    goes_on({2: two, 4: four}, saved, before, after)


def test_shards_that_are_wider_than_weights(four: Ranks, tmp_path: Path) -> None:
    """Weights in bfloat16, their shards in float32: other layers on the ranks cut them elsewhere, and go on bit by bit."""
    one, other = (made_by("1f1b", 2, 2, counts=counts, zero=1) for counts in ([3, 3], [2, 4]))
    narrow: dict[str, Any] = {"dtype": bfloat16, "grad_dtype": float32}
    going_on = four.run(resume_runs.resumed, one, range(STEPS), **narrow)
    four.run(resume_runs.resumed, one, range(BEFORE + 2), path=tmp_path / "saved", **narrow)
    after = four.run(resume_runs.resumed, other, range(BEFORE, STEPS), after=tmp_path / "saved", **narrow)
    assert after == [losses[BEFORE:] for losses in going_on]


def test_slices_draw_by_themselves(two: Ranks, tmp_path: Path) -> None:
    """Under other layouts the slices of a microbatch draw the same, too; a sequence of 3 tokens is in two."""
    plans: list[Plan] = []
    layouts: list[tuple[list[int], dict[str, Any]]] = [([2, 4], {}), ([1, 2, 2, 1], {"placement": "wave", "chunks": 2})]
    for counts, more in layouts:
        problem = replace(make_problem(2, 2 * resume_runs.MICROBATCHES, costs_ns=(10, 12, 9), **more), slices=(1, 2))
        ends = list(accumulate(counts, initial=0))
        stages = [replace(stage, layers=bounds) for stage, bounds in zip(problem.stages, pairwise(ends), strict=True)]
        problem = replace(problem, stages=tuple(stages))
        plans.append(plan_of(problem, constructive("greedy")(problem)))
    going_on = two.run(resume_runs.resumed, plans[0], range(STEPS), path=tmp_path / "saved", recompute=True)
    for losses in two.run(resume_runs.resumed, plans[1], range(STEPS - 2, STEPS), after=tmp_path / "saved"):
        assert losses == pytest.approx(going_on[0][-2:], rel=1e-12, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize("before", NAMES)
def test_others(two: Ranks, four: Ranks, saved: dict[str, Path], before: str) -> None:
    for one, after in OTHERS:
        if one == before:
            goes_on({2: two, 4: four}, saved, before, after)


@pytest.mark.parametrize("mode", [Versions.STASH, Versions.TWO_BUFFERED])
def test_steps_that_overlap(two: Ranks, tmp_path: Path, mode: Versions) -> None:
    """A checkpoint is written beside the next run, and has the updates: with dropout, what follows it is the same bit by bit."""
    period = period_plan(2, 1 if mode is Versions.STASH else 2, mode)
    stages = [replace(stage, layers=bounds) for stage, bounds in zip(period.problem.stages, [(0, 3), (3, 6)], strict=True)]
    plan = run_of(replace(period, problem=replace(period.problem, stages=tuple(stages))), 4)
    for going_on, resumed in two.run(resume_runs.overlapping, plan, tmp_path / "saved"):
        assert going_on == resumed

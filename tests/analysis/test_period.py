"""Periods of steps that overlap: the simulator's period, versions and memory, the verifier's own, and runs of many steps."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from inputs.periods import random_period

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.simulate import simulate
from schedc.analysis.simulation.unroll import depth_of, unroll
from schedc.analysis.simulation.versions import versions_of
from schedc.errors import CheckFailed
from schedc.ir import Kind, Link, Op, Problem, Schedule, Stage, Updates, Versions
from schedc.verify.plan.period import is_period
from schedc.verify.schedule.checks import verify_schedule
from schedc.verify.schedule.updates import delays_and_versions, run_of


def one_after_another(ranks: int, count: int, *, latency_ns: int = 0, mode: Versions = Versions.STASH) -> tuple[Problem, Schedule]:
    """PipeDream's 1F1B: F takes 10, BW 20, U 3; each stage begins as many microbatches ahead as there are stages after it."""
    stage = Stage(
        rank=0,
        forward_ns=(10,),
        backward_input_ns=(10,),
        backward_weight_ns=(10,),
        backward_ns=(20,),
        activation_bytes=1,
        update_ns=3,
        version_bytes=5,
    )
    problem = Problem(
        name="1f1b",
        ranks=ranks,
        microbatches=count,
        stages=tuple(replace(stage, rank=rank) for rank in range(ranks)),
        paths=(tuple(range(ranks)),),
        path_of=(0,) * count,
        links=tuple(
            Link(source=a, destination=b, latency_ns=latency_ns)
            for rank in range(ranks - 1)
            for a, b in ((rank, rank + 1), (rank + 1, rank))
        ),
        memory_limit_bytes=(None,) * ranks,
        updates=Updates(versions=mode, microbatches=count, is_period=True),
    )
    orders = tuple(
        (
            *(op for m in range(count) for op in (Op(Kind.F, rank, m + ranks - 1 - rank), Op(Kind.BW, rank, m))),
            Op(Kind.U, rank, 0),
        )
        for rank in range(ranks)
    )
    return problem, Schedule(orders=orders)


def test_pipedream_by_hand() -> None:
    problem, schedule = one_after_another(4, 1)
    assert steady_state(problem, schedule).period_ns == 33
    held = versions_of(problem, schedule)
    assert held.delays == (3, 2, 1, 0)  # p - 1 - s
    assert held.versions == (4, 3, 2, 1)  # p - s
    assert peak_bytes(problem, schedule) == (4 + 3 * 5, 3 + 2 * 5, 2 + 5, 1)


def test_latency_that_four_microbatches_do_not_hide() -> None:
    problem, schedule = one_after_another(4, 1, latency_ns=7)
    steady = steady_state(problem, schedule)
    assert steady.exact_ns == Fraction(4 * 30 + 3 + 6 * 7, 4)  # there and back, and U on rank 0, with four under way
    assert steady.period_ns == 42
    assert {op.kind for op in steady.longest} == {Kind.F, Kind.BW, Kind.U}


def test_two_buffers_need_as_many_microbatches_as_are_under_way() -> None:
    assert verify_schedule(*one_after_another(4, 3, mode=Versions.TWO_BUFFERED)) == ()
    problem, schedule = one_after_another(4, 1, mode=Versions.TWO_BUFFERED)
    (violation, *_) = verify_schedule(problem, schedule)
    assert violation.rule == "weights-read"
    assert "F0.2 is before U0.0, whose weights it reads" in violation.message
    held = versions_of(*one_after_another(4, 3, mode=Versions.TWO_BUFFERED))
    assert (held.delays, held.versions) == ((1,) * 4, (2,) * 4)


def test_a_cycle_of_ops_is_no_period() -> None:
    problem, schedule = one_after_another(2, 1)
    stuck = Schedule(orders=(schedule.orders[0], (Op(Kind.F, 1, 1), Op(Kind.BW, 1, 1), Op(Kind.U, 1, 1))))
    stuck = Schedule(orders=((Op(Kind.F, 0, 0), Op(Kind.BW, 0, 0), Op(Kind.U, 0, 0)), stuck.orders[1]))
    assert steady_state(problem, stuck).period_ns == 63  # one microbatch at a time: ranks count their periods by themselves
    around = ((Op(Kind.BW, 0, 0), Op(Kind.F, 0, 0), Op(Kind.U, 0, 0)), stuck.orders[1])
    with pytest.raises(CheckFailed, match="wait for each other"):
        steady_state(problem, Schedule(orders=around))
    assert not is_period(problem, Schedule(orders=around), 10**6)


@pytest.mark.parametrize("seed", range(60))
def test_simulator_and_verifier_agree(seed: int) -> None:
    problem, schedule = random_period(Random(seed), largest=Random(seed).choice((3, 50, 10**9)))
    assert verify_schedule(problem, schedule) == ()
    period_ns = steady_state(problem, schedule).period_ns
    assert is_period(problem, schedule, period_ns)
    assert period_ns == 0 or not is_period(problem, schedule, period_ns - 1)
    held = versions_of(problem, schedule)
    assert (held.delays, held.versions) == delays_and_versions(*run_of(problem, schedule))
    peaks = peak_bytes(problem, schedule)
    assert verify_schedule(replace(problem, memory_limit_bytes=peaks), schedule) == ()
    for rank, peak in enumerate(peaks):
        if peak:
            tight = tuple(peak - 1 if each == rank else None for each in range(problem.ranks))
            assert {violation.rule for violation in verify_schedule(replace(problem, memory_limit_bytes=tight), schedule)} == {
                "memory-limit"
            }


@pytest.mark.parametrize("seed", range(30))
def test_a_run_of_many_steps_goes_at_that_pace(seed: int) -> None:
    problem, schedule = random_period(Random(seed))
    exact_ns = steady_state(problem, schedule).exact_ns
    fill, steps = depth_of(problem, schedule), 200
    makespans_ns = [simulate(*unroll(problem, schedule, count)).makespan_ns for count in (steps, 2 * steps)]
    assert abs((makespans_ns[1] - makespans_ns[0]) / steps - exact_ns) <= max(1.0, float(exact_ns) / 50)
    assert (steps - fill) * exact_ns <= makespans_ns[0] <= (steps + 4 * fill + 4) * (exact_ns + 1)


@pytest.mark.parametrize("seed", range(30))
def test_a_run_holds_all_of_its_steps_and_keeps_the_rules(seed: int) -> None:
    problem, schedule = random_period(Random(seed))
    for steps in (1, 2, 5):
        run, orders = unroll(problem, schedule, steps)
        assert verify_schedule(run, orders) == ()
        assert max(peak_bytes(run, orders)) <= max(peak_bytes(problem, schedule))

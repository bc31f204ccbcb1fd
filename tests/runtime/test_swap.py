"""Moving to another plan while training: with the same step on all ranks, with the reference's gradients in every step, or not at
all, and then all ranks know why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, strategies as st
from inputs.few_plans import W_IN_PARTS, made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import swap_runs
from suite.example_counts import examples

from schedc.formats.plan.plan_file import plan_sha256, write_plan
from schedc.formats.trace_file import read_trace
from schedc.ir.ops import token
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem


def made(method: str, microbatches: int = 6, **options: Any) -> Plan:
    return made_by(method, 4, microbatches, **options)


def assert_trains(results: Sequence[Any], plans: Sequence[Plan], ran: Sequence[int]) -> None:
    """Every step has the reference's gradients and loss, and ran the ops of plan `ran[step]`, on all ranks."""
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        assert max(result["errors"]) < 1e-9
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-12)
        assert result["losses"] == results[0]["losses"]
        assert result["microbatches"] == [plans[number].problem.microbatches for number in ran]
        orders = [[token(op) for op in plan.ranks[rank].compute] for plan in plans]
        assert result["orders"] == [orders[number] for number in ran]


def one_step_of(results: Sequence[Any], number: int, state: str = "done") -> int:
    """The step with which all ranks settled the swap, the same on all."""
    (step,) = {result["swaps"][number][1] for result in results}
    assert [result["swaps"][number][0] for result in results] == [state] * len(results)
    return int(step)


@pytest.mark.slow
def test_from_1f1b_to_zb_h1_to_greedy_in_parts(four: Ranks) -> None:
    """All ranks call it before the same step, one of them 0.3 s late; then each before another one."""
    plans = [made("1f1b"), made("zb-h1"), made(W_IN_PARTS[0], **W_IN_PARTS[1])]
    calls = [{1: 1, 5: 2}, {1: 1, 6: 2}, {1: 1, 7: 2}, {1: 1, 5: 2}]
    results = four.run(swap_runs.swap_while_training, plans, calls, 11, {2: 0.3})
    first, second = one_step_of(results, 0), one_step_of(results, 1)
    assert first in (2, 3)
    assert second in (8, 9)
    assert len({str(plan.ranks) for plan in plans}) == 3
    assert_trains(results, plans, [0] * first + [1] * (second - first) + [2] * (11 - second))
    assert not any(result["warnings"] for result in results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ("dualpipe-v", "zb-v", {"placement": "wave", "chunks": 2}),
        ("chimera", "greedy", {"placement": "bidirectional"}),
        ("interleaved", "greedy", {"placement": "loop", "chunks": 2}),
    ],
)
def test_other_placements(four: Ranks, before: str, after: str, options: dict[str, Any]) -> None:
    plans = [made(before, 8, **options), made(after, 8, **options)]
    results = four.run(swap_runs.swap_while_training, plans, [{0: 1}, {1: 1}, {0: 1}, {1: 1}], 5)
    step = one_step_of(results, 0)
    assert step in (2, 3)
    assert_trains(results, plans, [0] * step + [1] * (5 - step))


@pytest.mark.slow
@examples(10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.lists(st.integers(0, 4), min_size=4, max_size=4), late=st.integers(0, 3))
def test_whenever_each_rank_calls(four: Ranks, at: list[int], late: int) -> None:
    """The move comes with the first or second step after the one before which the last rank calls it."""
    plans = [made("1f1b", 4), made("zb-h1", 4)]
    results = four.run(swap_runs.swap_while_training, plans, [{step: 1} for step in at], 7, {late: 0.02})
    step = one_step_of(results, 0)
    assert step in (max(at) + 1, max(at) + 2)
    assert_trains(results, plans, [0] * step + [1] * (7 - step))


def test_all_call_in_a_step_before_its_loss(four: Ranks) -> None:
    """The next step is the new plan's."""
    plans = [made("1f1b", 4), made("zb-h1", 4)]
    assert four.run(swap_runs.swap_in_a_step, plans) == [[0, 0, 1]] * 4


def test_a_rank_that_never_calls(four: Ranks) -> None:
    """Nobody waits for it."""
    plans = [made("1f1b"), made("zb-h1")]
    results = four.run(swap_runs.swap_while_training, plans, [{1: 1}, {1: 1}, {}, {1: 1}], 4)
    assert_trains(results, plans, [0] * 4)
    assert [result["swaps"] for result in results] == [[("pending", None, None)]] * 2 + [[]] + [[("pending", None, None)]]


@pytest.mark.slow
@pytest.mark.parametrize(("microbatches", "grows"), [(3, False), (12, False), (12, True)])
def test_another_number_of_microbatches(four: Ranks, microbatches: int, grows: bool) -> None:
    """The batch grows with it, or is cut into microbatches of another size."""
    plans = [made("1f1b", 6), made("zb-h1", microbatches)]
    batches = None if grows else plans[0]
    results = four.run(swap_runs.swap_while_training, plans, [{1: 1}] * 4, 5, None, batches)
    step = one_step_of(results, 0)
    assert_trains(results, plans, [0] * step + [1] * (5 - step))


def two_ways(path_of: tuple[int, ...]) -> Problem:
    """Two paths of four stages, which visit the ranks 0 1 2 3 and 0 2 1 3: each crosses pairs of ranks that the other does not."""
    problem = make_problem(4, len(path_of), placement=[0, 1, 2, 3])
    again = [problem.stages[rank] for rank in (0, 2, 1, 3)]
    pairs = [(0, 2), (2, 1), (1, 3)]
    link = problem.links[0]
    links = {(x.source, x.destination): x for x in problem.links}
    for pair in pairs:
        for source, destination in (pair, pair[::-1]):
            links.setdefault((source, destination), replace(link, source=source, destination=destination))
    return replace(
        problem,
        stages=(*problem.stages, *again),
        paths=((0, 1, 2, 3), (4, 5, 6, 7)),
        path_of=path_of,
        links=tuple(links[pair] for pair in sorted(links)),
    )


def test_wires_that_the_old_plan_has_not(four: Ranks) -> None:
    """They are connected between the two steps."""
    one, both = two_ways((0, 0, 0, 0)), two_ways((0, 1, 0, 1))
    plans = [plan_of(problem, constructive("gpipe")(problem)) for problem in (one, both)]
    pairs = [{(rank.rank, c.peer) for rank in plan.ranks for c in rank.channels if c.transfers} for plan in plans]
    assert pairs[1] > pairs[0]
    results = four.run(swap_runs.swap_while_training, [*plans, plans[0]], [{0: 1, 4: 2}] * 4, 8)
    first, second = one_step_of(results, 0), one_step_of(results, 1)
    assert_trains(results, plans, [0] * first + [1] * (second - first) + [0] * (8 - second))


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        ([made("gpipe", placement=[0, 1, 3, 2])] * 4, "rank 0 has refused the plan: "),
        ([made("1f1b"), made("1f1b"), made("zb-h1"), made("1f1b")], "ranks 0 and 2 have different plans (digests "),
    ],
)
def test_nobody_moves(four: Ranks, offered: list[Plan], reason: str) -> None:
    """All go on with the old plan, know why, and can move to a good plan afterwards."""
    plans = [made("1f1b"), made("zb-h1")]
    calls = [{0: 2 + rank, 3: 1} for rank in range(4)]
    results = four.run(swap_runs.swap_while_training, [*plans, *offered], calls, 7)
    assert one_step_of(results, 0, "refused") in (1, 2)
    step = one_step_of(results, 1)
    assert_trains(results, plans, [0] * step + [1] * (7 - step))
    for result in results:
        said = result["swaps"][0][2]
        assert said.startswith(reason) and "\n" not in said
        assert said == results[0]["swaps"][0][2]
        assert result["warnings"] == [f"RuntimeWarning: step {result['swaps'][0][1]} goes on with plan 'test': {said}"]


def test_a_file_that_one_rank_cannot_read(four: Ranks, tmp_path: Path) -> None:
    write_plan(made("zb-h1"), tmp_path / "next.json")
    plans: list[Any] = [made("1f1b"), str(tmp_path / "next.json"), str(tmp_path / "none.json")]
    results = four.run(swap_runs.swap_while_training, plans, [{0: 1}, {0: 1}, {0: 2}, {0: 1}], 4)
    assert_trains(results, [plans[0]], [0] * 4)
    for result in results:
        ((state, _, reason),) = result["swaps"]
        assert state == "refused"
        assert reason.startswith("rank 2 has refused the plan: ") and "none.json" in reason
    calls = [{0: 1}] * 4
    results = four.run(swap_runs.swap_while_training, plans, calls, 4)
    step = one_step_of(results, 0)
    assert_trains(results, [plans[0], made("zb-h1")], [0] * step + [1] * (4 - step))


OTHER_STAGES = [
    (made("gpipe", placement=[0, 1, 3, 2]), "it puts stage 2 on rank 3, expected rank 2; a swap leaves every stage where it is"),
    (made("interleaved", 8, placement="loop", chunks=2), "rank 0 was given stages [0], plan 'test' puts stages [0, 4] there"),
    (plan_of(p := make_problem(2, 4), constructive("gpipe")(p)), "plan 'test' is for 2 ranks, this job has 4"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("other", "reason"), OTHER_STAGES)
def test_plans_of_other_stages(four: Ranks, other: Plan, reason: str) -> None:
    plans = [made("1f1b"), other]
    results = four.run(swap_runs.swap_while_training, plans, [{0: 1}] * 4, 3)
    assert_trains(results, [plans[0]], [0] * 3)
    for result in results:
        assert reason in result["swaps"][0][2]


def test_a_second_swap_and_a_closed_pipe(four: Ranks) -> None:
    said = four.run(swap_runs.swap_wrongly, made("1f1b"))
    pending = "InvalidInput: another swap is pending until all ranks have called it; wait until its state is not 'pending'"
    closed = "InvalidInput: the pipe is closed, by close() or by a failed step; load the plan again"
    assert said == [[pending, pending, closed], [closed], [closed], [closed]]


@pytest.mark.slow
def test_a_recorder_begins_again(four: Ranks, tmp_path: Path) -> None:
    """A trace written after the swap holds the new plan's steps alone."""
    plans = [made("1f1b"), made("zb-h1")]
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    nothing = "InvalidInput: rank 0 has recorded no step; run more steps than the recorder skips before writing the trace"
    no_recorder = "InvalidInput: there is nothing recorded to write; give load observe=schedc.runtime.measure.recording.Recorder()"
    assert four.run(swap_runs.record_and_swap, plans, paths) == [[None, nothing, None, no_recorder]] * 4
    for plan, path, steps in ((plans[0], paths[0], ([0],)), (plans[1], paths[1], ([2, 3], [3, 4]))):
        trace = read_trace(path)
        assert trace.plan_sha256 == plan_sha256(plan)
        assert [step.step for step in trace.ranks[0].steps] in steps

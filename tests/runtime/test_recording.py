"""Recording: what a recorder keeps, the trace of all ranks' records, and the file that a real run writes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from inputs.few_plans import W_IN_PARTS, made_by
from inputs.plans import one_f_one_b, plan_of, small_plan
from inputs.problems import make_problem
from runs import watched_runs

from schedc.analysis.comparison.compare import compare
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import plan_sha256
from schedc.formats.trace_file import read_trace
from schedc.ir.ops import Kind, Op
from schedc.runtime.common.hooks import OpTimes
from schedc.runtime.measure.clocks import ClockOffset, best_offset, clock_name
from schedc.runtime.measure.recording import RankRecord, Recorder, StepRecord, TransferTime, trace_of

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir.plan import Plan

F0 = Op(Kind.F, 0, 0)


def observe_steps(recorder: Recorder, steps: int, *, first: int = 0, fails: bool = False) -> None:
    """Tell a recorder of steps that begin at 100 times their number."""
    for step in range(first, first + steps):
        recorder.begin_step(step, 100 * step)
        recorder.taken(F0, 1, 100 * step + 1)
        recorder.sent(F0, 1, 100 * step + 8)
        recorder.op(OpTimes(F0, 100 * step, 100 * step + 2, 100 * step + 7))
        if not fails:
            recorder.end_step(step, 100 * step + 9)


def kept(recorder: Recorder) -> list[int]:
    return [step.step for step in recorder.record(0).steps]


def test_the_last_steps_are_kept_and_the_first_skipped() -> None:
    recorder = Recorder(3, skip=2)
    observe_steps(recorder, 2)
    assert kept(recorder) == []
    observe_steps(recorder, 2, first=2)
    assert kept(recorder) == [2, 3]
    observe_steps(recorder, 50, first=4)
    assert kept(recorder) == [51, 52, 53]
    (_, _, last) = recorder.record(5).steps
    assert last == StepRecord(
        step=53,
        begin_ns=5300,
        end_ns=5309,
        ops=[OpTimes(F0, 5300, 5302, 5307)],
        sent=[TransferTime(F0, 1, 5308)],
        taken=[TransferTime(F0, 1, 5301)],
    )
    assert pickle.loads(pickle.dumps(recorder.record(5))) == recorder.record(5)


def test_the_first_steps_after_the_skipped_are_kept() -> None:
    recorder = Recorder(2, skip=1, keep="first")
    observe_steps(recorder, 9)
    assert kept(recorder) == [1, 2]


def test_a_failed_step_is_not_kept_and_ops_may_be_told_late() -> None:
    recorder = Recorder(5, skip=0)
    observe_steps(recorder, 1, fails=True)
    observe_steps(recorder, 1, first=1)
    recorder.op(OpTimes(Op(Kind.BW, 0, 0), 107, 108, 109))  # a GPU's times are known after the step only
    observe_steps(recorder, 1, first=2, fails=True)
    assert kept(recorder) == [1]
    assert [times.op.kind for times in recorder.record(0).steps[0].ops] == [Kind.F, Kind.BW]
    observe_steps(recorder, 1, first=3)
    recorder.clear()
    assert kept(recorder) == []


def test_memory_is_bounded() -> None:
    import tracemalloc

    def held_after(steps: int) -> int:
        tracemalloc.start()
        recorder = Recorder(4, skip=1)
        observe_steps(recorder, steps)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(kept(recorder)) == 4
        return size

    few, many = held_after(10), held_after(3000)
    assert many < few + 100_000  # 3000 steps of this size take more than 1.5 MB


@pytest.mark.parametrize(("steps", "skip"), [(0, 0), (1, -1)])
def test_a_recorder_that_would_keep_nothing_is_refused(steps: int, skip: int) -> None:
    with pytest.raises(ValueError, match="steps must be at least 1 and skip at least 0"):
        Recorder(steps, skip=skip)


def test_the_shortest_round_trip_says_how_far_clocks_are_apart() -> None:
    ahead = 1_000_000  # the other clock
    rounds = [
        (0, 500 + ahead, 600 + ahead, 700),
        (1000, 1030 + ahead, 1035 + ahead, 1061),
        (2000, 2900 + ahead, 2901 + ahead, 2910),
    ]
    offset = best_offset(rounds)
    assert offset.error_ns == 28  # half of 61 − 5
    assert abs(offset.offset_ns + ahead) <= offset.error_ns
    assert best_offset([(0, 45, 46, 100)]) == ClockOffset(0, 50)  # an offset within its error is none
    assert best_offset([(0, 145, 146, 100)]).offset_ns < 0
    assert best_offset([(100, 5, 6, 200)]).offset_ns > 0


def heard(plan: Plan, rank: int, start_ns: int, steps: tuple[int, ...] = (3,)) -> RankRecord:
    """Steps of the plan: each op takes 10, one after another, 1,000 between the begins of two steps."""
    entry = plan.ranks[rank]
    made = []
    for step in steps:
        begin_ns = start_ns + 1000 * (step - steps[0])
        times = [
            OpTimes(op, begin_ns + 10 * at, begin_ns + 10 * at, begin_ns + 10 * at + 10) for at, op in enumerate(entry.compute)
        ]
        moves: dict[bool, list[TransferTime]] = {True: [], False: []}
        for channel in entry.channels:
            for at, op in enumerate(channel.transfers):
                moves[channel.receives].append(TransferTime(op, channel.peer, begin_ns + at))
        made.append(
            StepRecord(step=step, begin_ns=begin_ns, end_ns=begin_ns + 500, ops=times, sent=moves[False], taken=moves[True])
        )
    return RankRecord(rank=rank, steps=tuple(made))


def test_a_trace_is_on_one_clock_from_its_first_begin_and_without_its_scale() -> None:
    plan = small_plan(data_parallel=None)
    records = [heard(plan, rank, start_ns) for rank, start_ns in enumerate((5000, 100, 9000))]
    offsets = [ClockOffset(0, 0), ClockOffset(4920, 7), ClockOffset(-3990, 3)]
    trace = trace_of(plan, records, offsets, scale=2.0)
    assert trace.plan_sha256 == plan_sha256(plan)
    assert trace.scale == 2.0
    assert [rank.steps[0].step_begin_ns for rank in trace.ranks] == [0, 10, 5]
    assert [rank.steps[0].step_end_ns for rank in trace.ranks] == [250, 260, 255]
    assert trace.ranks[1].steps[0].begun_ns[:3] == (10, 15, 20)
    assert [(rank.clock_offset_ns, rank.clock_error_ns) for rank in trace.ranks] == offsets
    assert trace_of(plan, [heard(plan, rank, 7) for rank in range(3)]).ranks[2].steps[0].step_begin_ns == 0


def refused(plan: Plan, records: list[RankRecord], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        trace_of(plan, records)


def test_records_that_are_not_of_the_plan_or_not_of_the_same_steps_are_refused() -> None:
    plan = small_plan(data_parallel=None)
    other = plan_of(problem := make_problem(3, 3), one_f_one_b(problem))
    records = [heard(plan, rank, 0) for rank in range(3)]
    refused(plan, records[:2], "the recording is of the ranks 0, 1, expected the plan's, 0 to 2")
    refused(plan, [*records[:2], heard(plan, 2, 0, ())], "rank 2 has recorded no step")
    refused(plan, [*records[:2], heard(plan, 2, 0, (3, 4))], r"rank 2 has recorded the steps \[3, 4\], rank 0 \[3\]")
    refused(other, records, r"step 3 of rank 0 ran F0\.3 as op \d, expected BW0\.\d; it is not of this plan")
    step = records[0].steps[0]
    short = StepRecord(step=3, begin_ns=0, end_ns=9, ops=step.ops[:-1], sent=step.sent, taken=step.taken)
    refused(plan, [RankRecord(rank=0, steps=(short,)), *records[1:]], "step 3 of rank 0 ended after 7 ops, expected BW0.3")
    twice = StepRecord(step=3, begin_ns=0, end_ns=9, ops=step.ops, sent=[*step.sent, step.sent[0]], taken=step.taken)
    refused(
        plan, [RankRecord(rank=0, steps=(twice,)), *records[1:]], r"step 3 of rank 0 says twice when F0\.0 was sent, with rank 1"
    )
    strange = [*step.taken, TransferTime(Op(Kind.BW, 2, 0), 2, 0)]
    strangely = StepRecord(step=3, begin_ns=0, end_ns=9, ops=step.ops, sent=step.sent, taken=strange)
    refused(plan, [RankRecord(rank=0, steps=(strangely,)), *records[1:]], r"moved BW2\.0 with rank 2, which the plan does not")


@pytest.mark.slow
def test_a_real_run_is_written_whole(two: Ranks, tmp_path: Path) -> None:
    """Two processes: every op and transfer of every kept step is there, in order, at times that can be."""
    plans = {
        "zb-v": made_by("zb-v", 2, 8, placement="wave", chunks=2),
        "parts": made_by(W_IN_PARTS[0], 2, 8, **W_IN_PARTS[1]),
    }
    assert plans["parts"].parts
    for name, plan in plans.items():
        path = tmp_path / f"{name}.json"
        times = two.run(watched_runs.train_and_write, plan, 5, path, 2, 1)
        assert all(isinstance(result, list) for result in times), times
        check_real(plan, path, times)


def test_processes_of_one_host_have_one_clock(two: Ranks) -> None:
    own, other = two.run(watched_runs.offsets)
    assert other == []
    assert own[0] == ClockOffset(0, 0)
    assert own[1].offset_ns == 0
    assert 0 < own[1].error_ns < 100_000_000_000


def check_real(plan: Plan, path: Path, times: list[list[tuple[int, int]]]) -> None:
    trace = read_trace(path)
    assert trace.steps == (3, 4)
    earliest_ns, latest_ns = [], []  # what the trace's zero may be, by the looks at the clock before and after each step
    for planned, rank in zip(plan.ranks, trace.ranks, strict=True):
        assert rank.compute == planned.compute
        assert [(channel.name, channel.transfers) for channel in rank.channels] == [
            (channel.name, channel.transfers) for channel in planned.channels
        ]
        for step in rank.steps:
            begun = [time_ns for times_ns in zip(step.asked_ns, step.begun_ns, step.ended_ns, strict=True) for time_ns in times_ns]
            assert begun == sorted(begun)
            assert step.step_begin_ns <= begun[0]
            assert begun[-1] <= step.step_end_ns
            for channel, times_ns in zip(rank.channels, step.channels_ns, strict=True):
                known = [time_ns for time_ns in times_ns if time_ns is not None]
                assert len(known) == len(times_ns)
                assert channel.receives or known == sorted(known)  # what is taken may be taken in another order
            begin_ns, end_ns = times[rank.rank][step.step]
            earliest_ns.append(begin_ns - step.step_begin_ns)
            latest_ns.append(end_ns - step.step_end_ns)
    assert max(earliest_ns) <= min(latest_ns), "one clock for all"
    found = compare(plan, simulate(plan.problem, plan.schedule()), trace)
    for account in found.ranks:
        measured = account.measured
        parts = (measured.compute_ns, measured.late_ns, measured.transfer_ns, measured.other_ns, measured.idle_ns)
        assert min(parts) >= 0
        assert sum(parts) == found.shown_ns
    assert {(block.stage, block.kind) for block in found.blocks} == {
        (op.stage, op.kind) for rank in plan.ranks for op in rank.compute
    }


@pytest.mark.slow
def test_all_ranks_hear_why_a_trace_is_not_written(two: Ranks, tmp_path: Path) -> None:
    one, other = two.run(watched_runs.train_and_fail_to_write, made_by("1f1b", 2, 8), made_by("gpipe", 2, 8), tmp_path)
    assert one == other
    expected = ("has recorded no step", "it is not of this plan", "nowhere does not exist", "rank 1 has recorded the steps [1]")
    for said, part in zip(one, expected, strict=True):
        assert said.startswith("InvalidInput: ")
        assert part in said
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_time_namespaces_has_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 5.6: the boot says which; nothing does where it cannot be read."""
    named = clock_name()
    monkeypatch.setattr("schedc.runtime.measure.clocks.os.listdir", lambda _: ["mnt", "net"])
    boot = clock_name()
    assert boot and boot.split() == named.split()[:1]
    monkeypatch.setattr("schedc.runtime.measure.clocks.Path", lambda _: Path("/nothing/here"))
    assert clock_name() == ""

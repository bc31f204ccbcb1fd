"""Interruptions and the end of the time: nothing that is known is lost, and what runs ends soon."""

from __future__ import annotations

import concurrent.futures
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, ref

import pytest
from inputs.problems import m70

from schedc.compile.certify import certify, check_plan
from schedc.compile.driver import compile_problem
from schedc.formats.plan.plan_file import read_plan
from schedc.ir.plan import MadeBy
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.incumbent import Ended
from schedc.solvers.common.interruption import Interruption, OutOfTime, wait_for
from schedc.solvers.templates.fused import OneFOneB
from schedc.study.bench.instances import instances

EXAMPLES = Path(__file__).parents[2] / "examples"
WAVE = next(each.problem for each in instances("m70-wave") if each.name == "m70-wave-4dc-2-2-case1")
EIGHT = replace(WAVE, microbatches=8, path_of=(0,) * 8)


def _signal_soon(after_s: float, number: int = signal.SIGINT) -> threading.Timer:
    timer = threading.Timer(after_s, os.kill, (os.getpid(), number))
    timer.start()
    return timer


def test_a_signal_raises_where_it_may_and_leaves_a_mark_elsewhere() -> None:
    interruption = Interruption()
    with interruption.listening():
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt), interruption.raising():
            pytest.fail("a region that may end does not begin after an interruption")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_within_a_region_that_may_end_a_signal_raises_at_once(number: int) -> None:
    interruption = Interruption()
    with interruption.listening(), pytest.raises(KeyboardInterrupt), interruption.raising():
        signal.raise_signal(number)
        time.sleep(10)


def test_the_second_signal_raises_wherever_it_comes() -> None:
    interruption = Interruption()
    with interruption.listening():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_what_is_deferred_is_done_before_the_interruption() -> None:
    interruption, done = Interruption(), []
    with interruption.listening(), pytest.raises(KeyboardInterrupt), interruption.raising():
        with interruption.deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("deferred")
        done.append("never")
    assert done == ["deferred"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_what_is_being_imported_is_imported_to_its_end(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half of a module would stay behind in those that it has imported itself."""
    name = f"slow_module_{number}"
    raised = f"import signal, time\nsignal.raise_signal({number})\ntime.sleep(0.2)\nwhole = True\n"
    tmp_path.joinpath(f"{name}.py").write_text(raised, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    interruption = Interruption()
    clock = SimpleNamespace(perf_counter=lambda: 50.0 * (name in sys.modules))  # the time is up when the import has begun
    monkeypatch.setattr("schedc.solvers.common.interruption.time", clock)
    seconds = 40.0 if number == signal.SIGALRM else None
    ended = pytest.raises((KeyboardInterrupt, OutOfTime))
    with interruption.listening(), interruption.alarm(seconds), ended, interruption.raising():
        importlib.import_module(name)
        time.sleep(10)
    assert sys.modules.pop(name).whole


def test_nothing_is_raised_where_the_interpreter_would_drop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback of a weak reference: what it raises is printed, and no more."""
    dropped, begun = list[object](), list[int]()
    monkeypatch.setattr("sys.unraisablehook", dropped.append)
    clock = SimpleNamespace(perf_counter=lambda: 50.0 * len(begun))
    monkeypatch.setattr("schedc.solvers.common.interruption.time", clock)
    interruption, keys, known = Interruption(), [threading.Event()], WeakKeyDictionary[Any, int]()
    pending: Any = SimpleNamespace(append=lambda _key: signal.raise_signal(signal.SIGALRM))
    vars(known).update(_iterating={0}, _pending_removals=pending)  # then a removal waits there
    known.data = {ref(each, known._remove): 1 for each in keys}  # type: ignore[attr-defined]
    with interruption.listening(), interruption.alarm(40.0), pytest.raises(OutOfTime), interruption.raising():
        begun.append(0)
        keys.clear()
        begun.append(1)
        time.sleep(10)
    assert begun == [0, 1] and not dropped


def test_nothing_is_raised_where_garbage_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped, begun = list[object](), list[int]()
    monkeypatch.setattr("sys.unraisablehook", dropped.append)
    clock = SimpleNamespace(perf_counter=lambda: 50.0 * len(begun))
    monkeypatch.setattr("schedc.solvers.common.interruption.time", clock)

    def collecting(phase: str, _found: dict[str, int]) -> None:
        if phase == "stop" and len(begun) == 1:
            signal.raise_signal(signal.SIGALRM)
            begun.append(1)

    interruption = Interruption()
    gc.callbacks.append(collecting)
    try:
        with interruption.listening(), interruption.alarm(40.0), pytest.raises(OutOfTime), interruption.raising():
            begun.append(0)
            gc.collect()
            time.sleep(10)
    finally:
        gc.callbacks.remove(collecting)
    assert begun == [0, 1] and not dropped


def test_a_program_that_is_imported_itself_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """import time
from schedc.solvers.common.interruption import Interruption, OutOfTime
interruption, ended = Interruption(), False
try:
    with interruption.listening(), interruption.alarm(0.05), interruption.raising():
        time.sleep(10)
except OutOfTime:
    ended = True
"""
    tmp_path.joinpath("imported_program.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("imported_program").ended
    del sys.modules["imported_program"]


def test_what_a_library_swallows_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a callback from C, or while an object is deleted; until somebody is quiet."""
    monkeypatch.setattr("schedc.solvers.common.interruption.AGAIN_S", 0.3)
    interruption, swallowed = Interruption(), 0
    with interruption.listening(), interruption.alarm(0.3), interruption.raising():
        while swallowed < 3:
            try:
                time.sleep(10)
            except OutOfTime as raised:
                swallowed += 1
                last = raised
        last.by.quiet()
        time.sleep(0.6)


def test_outside_of_a_region_a_signal_is_a_mark_after_the_time_is_up_too() -> None:
    interruption = Interruption()
    with interruption.listening(), interruption.alarm(0.05):
        with pytest.raises(OutOfTime), interruption.raising():
            time.sleep(10)
        signal.raise_signal(signal.SIGINT)
    assert interruption.requested


def test_the_end_of_an_alarm_leaves_the_time_as_it_was() -> None:
    interruption, done = Interruption(), []
    with interruption.alarm(0.0):
        with interruption.alarm(None), interruption.raising():
            done.append("with more time")
        with pytest.raises(OutOfTime), interruption.raising():
            done.append("never")
    with interruption.raising():
        done.append("after the alarm")
    assert done == ["with more time", "after the alarm"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_somebody_elses_alarm_goes_on() -> None:
    before, _ = signal.getitimer(signal.ITIMER_REAL)
    try:
        signal.setitimer(signal.ITIMER_REAL, 50)
        interruption = Interruption()
        with interruption.listening(), interruption.alarm(20):
            pass
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, before)


@pytest.mark.parametrize("listens", [True, False])
def test_the_time_is_up_in_a_region_or_where_the_next_begins(listens: bool) -> None:
    interruption = Interruption()
    with interruption.alarm(0.02):
        time.sleep(0.04)
        with pytest.raises(OutOfTime), interruption.raising():
            pytest.fail("a region that may end does not begin when the time is up")
    if listens:
        with interruption.listening(), interruption.alarm(0.05), pytest.raises(OutOfTime), interruption.raising():
            time.sleep(10)


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_no_alarm_rings_later_than_what_it_is_within(seconds: float | None) -> None:
    interruption = Interruption()
    with interruption.listening():
        with interruption.within(0.0):
            assert interruption.is_late
            with pytest.raises(OutOfTime), interruption.alarm(seconds), interruption.raising():
                pytest.fail("the time of all is up")
        assert not interruption.is_late
        with interruption.within(60.0), interruption.alarm(seconds), interruption.raising():
            assert not interruption.is_late
        with interruption.within(0.1), pytest.raises(OutOfTime), interruption.alarm(seconds), interruption.raising():
            time.sleep(10)


def test_work_in_threads_is_stopped_and_its_result_counts() -> None:
    interruption, stop, main = Interruption(), threading.Event(), threading.get_ident()

    def waited_for() -> bool:
        walk = traceback.walk_stack(sys._current_frames()[main])
        return any(frame.f_code is concurrent.futures.wait.__code__ for frame, _ in walk)

    def work() -> bool:
        while not waited_for():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        return stop.wait(60)

    with interruption.listening(), interruption.raising(), ThreadPoolExecutor(1) as threads:
        job = threads.submit(work)
        ended_by = wait_for([job], stop.set)
    assert isinstance(ended_by, KeyboardInterrupt)
    assert job.result()


# A signal that comes while a weak reference is cleared raises there, and Python drops it with this warning; the mark stays.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("local{rounds=1000}", signal.SIGINT),
        ("polish{rounds=1000}", signal.SIGTERM),
        ("cpsat", signal.SIGTERM),
        ("cpsat{near=true}", signal.SIGINT),
        ("refute", signal.SIGINT),
        ("milp", signal.SIGINT),
    ],
)
def test_a_search_is_ended_and_its_best_is_compiled(method: str, number: int) -> None:
    problem = WAVE if method != "milp" else EIGHT
    interruption, timers = Interruption(), []

    def on_method(name: str) -> None:
        if name == method:
            timers.append(_signal_soon(0.5, number))

    with interruption.listening():
        compiled = compile_problem(problem, SearchSettings(method=method, on_method=on_method, interruption=interruption))
    for timer in timers:
        timer.join()
    assert timers
    assert compiled.ended == Ended.INTERRUPTED
    assert not compiled.plan.made_by.reproducible
    assert compiled.plan.certificate.makespan_ns <= min(entry.makespan_ns for entry in compiled.candidates if entry.makespan_ns)


def test_an_interruption_before_the_first_schedule_waits_for_it() -> None:
    interruption = Interruption()
    with interruption.listening():
        signal.raise_signal(signal.SIGINT)
        compiled = compile_problem(m70(2, 2), SearchSettings(interruption=interruption))
    assert compiled.ended == Ended.INTERRUPTED
    assert [entry.method for entry in compiled.candidates if entry.makespan_ns] == ["1f1b"]


@pytest.mark.slow
def test_why_the_work_ended() -> None:
    assert compile_problem(m70(0, 0)).ended == Ended.PROVEN
    assert compile_problem(EIGHT, SearchSettings(limits=Limits(gap=0.5))).ended == Ended.WITHIN_GAP
    assert compile_problem(m70(2, 2), SearchSettings(method="1f1b")).ended == Ended.DONE
    assert compile_problem(WAVE, SearchSettings(method="cpsat", limits=Limits(time_s=1))).ended == Ended.OUT_OF_TIME
    assert (
        compile_problem(EIGHT, SearchSettings(method="local{rounds=1}", limits=Limits(deterministic=0.1))).ended
        == Ended.OUT_OF_WORK
    )
    assert compile_problem(EIGHT, SearchSettings(method="local{rounds=1}")).ended == Ended.EXHAUSTED


def test_a_plan_is_written_though_the_checks_alone_break_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedc.compile.driver.CHECKS_S_PER_OP", 10.0)
    assert check_plan(compile_problem(m70(2, 2), SearchSettings(limits=Limits(time_s=0.1))).plan) == ()


def test_a_plan_whose_bounds_a_clock_cut_is_not_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = m70(2, 2)
    made_by = MadeBy(schedc="0", method="1f1b")
    full = certify(problem, OneFOneB()(problem), made_by)
    assert full.made_by.reproducible
    monkeypatch.setattr("schedc.compile.certify.LEAST_BOUNDS_S", 0.0)
    limits = Limits(time_s=0.0)
    cut = certify(problem, OneFOneB()(problem), made_by, limits=limits)
    assert not cut.made_by.reproducible
    assert cut.certificate.lower_bound_ns <= full.certificate.lower_bound_ns
    assert check_plan(cut) == ()
    assert not compile_problem(problem, SearchSettings(method="1f1b", limits=limits)).plan.made_by.reproducible
    assert compile_problem(
        problem, SearchSettings(method="1f1b", limits=replace(limits, deterministic=0.1))
    ).plan.made_by.reproducible


@pytest.mark.slow
@pytest.mark.parametrize(("number", "after_s"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGINT, 3)])
def test_the_command_writes_the_plan_and_says_interrupted(tmp_path: Path, number: int, after_s: float) -> None:
    output = tmp_path / "plan.json"
    command = [sys.executable, "-m", "schedc", "compile", str(EXAMPLES / "m70-wave" / "job.toml"), "-o", str(output)]
    command += ["--time-limit", "60s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "Ctrl-C keeps the best plan so far" in process.stderr.readline()
        time.sleep(after_s)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=250)
    assert process.returncode == 0
    assert printed.splitlines()[-1].endswith("interrupted")
    assert read_plan(output).made_by.reproducible is False


@pytest.mark.parametrize("together", [False, True])
def test_the_end_of_one_job_stops_others_only_where_they_work_together(together: bool) -> None:
    """Climbs beside each other end at their own time, so that a seed gives the same schedule."""
    stop = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(stop.wait, 0.0), threads.submit(stop.wait, 60 if together else 0.5)]
        assert wait_for(jobs, stop.set, together=together) is None
    assert jobs[1].result() is together

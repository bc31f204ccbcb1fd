"""Plans of a search that ended early are kept and found again, and other processes make the same ones."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import tiny_request

from schedc.errors import NoPlanFound
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.interruption import Interruption
from schedc.study.tune import planner as module, search
from schedc.study.tune.candidates import CandidateState, candidates
from schedc.study.tune.first_plans import baseline_of
from schedc.study.tune.planner import Planner
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.search import tune

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir import Plan, Problem
    from schedc.solvers.common.incumbent import Failure
    from schedc.study.tune.work import Progress

SMALL: dict[str, object] = {"microbatch_sizes": [1], "recompute": ["none"], "batch": 4, "ranks": [1, 2, 4]}
AUTO = SearchSettings(limits=Limits(time_s=None, workers=1))


def test_a_search_that_was_interrupted_goes_on_from_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, kept = tiny_request(tmp_path, tune=SMALL), tmp_path / "kept"
    interruption, made = Interruption(), []

    def counted(problem: Problem, settings: SearchSettings, failures: list[Failure]) -> Plan:
        made.append(problem)
        return baseline_of(problem, settings, failures)

    def stop(known: Progress) -> None:
        interruption.requested = known.done > 1

    monkeypatch.setattr(module, "baseline_of", counted)
    first = tune(request, SearchSettings(interruption=interruption), planner=Planner(kept), report=stop)
    begun, files = len(made), len(list(kept.iterdir()))
    assert not first.is_done and CandidateState.NOT_REACHED in {row.state for row in first.rows}
    assert 0 < files <= begun
    planner = Planner(kept)
    found = tune(request, AUTO, candidate_s=0.0, planner=planner)
    known = {repr(problem) for problem in made[:begun]}
    again = [problem for problem in made[begun:] if repr(problem) in known]
    assert found.is_done and len(again) <= begun - files, "what is kept is not made again"
    alone = tune(request, AUTO, candidate_s=0.0)
    assert (found.best.candidate, found.best.step_ns, found.plan) == (alone.best.candidate, alone.best.step_ns, alone.plan)
    planner.forget()
    assert not kept.exists()


def test_a_file_that_is_torn_or_of_another_problem_is_made_again(tmp_path: Path) -> None:
    request, kept = tiny_request(tmp_path, tune=SMALL), tmp_path / "kept"
    one, two = (candidate_problem(request, each).problem for each in candidates(request.choices)[:2])
    planner = Planner(kept)
    plan, other = (planner.plan(each, AUTO, [], baseline=True) for each in (one, two))
    files = sorted(kept.iterdir())
    assert len(files) == 2 and planner.plan(one, AUTO, [], baseline=True) == plan
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        file.write_bytes(content)
    assert [planner.plan(each, AUTO, [], baseline=True) for each in (one, two)] == [plan, other]
    assert [file.read_bytes() for file in files] == contents
    files[0].write_bytes(contents[0][:100])
    assert [planner.plan(each, AUTO, [], baseline=True) for each in (one, two)] == [plan, other]


def test_two_processes_find_what_one_does(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, tune=SMALL | {"placements": ["unidirectional"]})
    alone = tune(request, AUTO, candidate_s=0.0)
    with Planner(processes=2) as planner:
        found = tune(request, AUTO, candidate_s=0.0, planner=planner)
    assert (found.best.candidate, found.best.step_ns) == (alone.best.candidate, alone.best.step_ns)
    assert not found.failures and found.bound_ns == alone.bound_ns


def test_what_has_no_plan_elsewhere_has_none_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = tiny_request(tmp_path, tune=SMALL)
    problem = candidate_problem(request, candidates(request.choices)[0]).problem
    with Planner(processes=2) as planner:
        planner.ahead([(problem, SearchSettings(method="chimera"), False)], [])
        monkeypatch.setattr(module, "compile_problem", None)
        with pytest.raises(NoPlanFound, match="chimera"):
            planner.plan(problem, SearchSettings(method="chimera"), [], baseline=False)


@pytest.mark.parametrize(("takes_s", "leaves"), [((200, 0), False), ((200, 300), True)])
def test_what_the_first_plan_loads_says_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: tuple[int, ...], leaves: bool
) -> None:
    """By a clock that goes on while plans are made; a search that has left candidates for want of time is not done."""
    clock_s, costs_s = 0.0, iter(takes_s)

    class Slow(Planner):
        def plan(self, problem: Problem, settings: SearchSettings, failures: list[Failure], *, baseline: bool) -> Plan:
            nonlocal clock_s
            clock_s += next(costs_s, 0)
            return super().plan(problem, settings, failures, baseline=baseline)

    monkeypatch.setattr(search, "time", SimpleNamespace(perf_counter=lambda: perf_counter() + clock_s))
    limited = SearchSettings(limits=Limits(time_s=600, workers=1))
    found = tune(tiny_request(tmp_path, tune=SMALL), limited, candidate_s=0.0, planner=Slow())
    assert (CandidateState.NOT_REACHED in {row.state for row in found.rows}) is leaves
    assert found.is_done is not leaves

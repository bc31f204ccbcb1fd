"""The search over candidates: what is pruned could not be the best, memory is what ZeRO leaves, and an end comes with a plan."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from inputs.tune_jobs import EXPERTS, tiny_request

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.errors import Infeasible, InvalidInput, NoPlanFound
from schedc.frontend.job import checked_job
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.interruption import Interruption
from schedc.study.tune.candidates import CandidateState, candidates
from schedc.study.tune.estimates import simple_bound_ns, undelayed_ns, work_bound_ns
from schedc.study.tune.first_plans import baseline_of
from schedc.study.tune.folder import job_table
from schedc.study.tune.layer_costs import PROFILE
from schedc.study.tune.planner import KEPT
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import collectives_ns, costs_of, optimizer_ns
from schedc.study.tune.search import tune
from schedc.verify.plan.checks import verify_plan
from schedc.view.document import Line
from schedc.view.terminal.studies import shown_tuned

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir import Problem
    from schedc.ir.plan import Plan
    from schedc.solvers.common.incumbent import Failure
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.tuned import Tuned
    from schedc.study.tune.work import Progress

GREEDY = "greedy{n_sub=1}"


def tuned(request: TuneRequest, *, prune: bool = True, method: str = GREEDY, time_s: float | None = None) -> Tuned:
    """What is found by one fast method."""
    return tune(request, SearchSettings(method=method, limits=Limits(time_s=time_s)), candidate_s=0.0, prune=prune)


@pytest.mark.parametrize(
    "sections",
    [
        {"tune": {"batch": 4, "microbatch_sizes": [1]}},
        {"tune": {"batch": 4, "microbatch_sizes": [1, 2], "zero_stages": [0, 1], "recompute": ["none"], "ranks": [1, 2]}},
        {"tune": {"batch": 4, "microbatch_sizes": [1, 2]}, "memory": {"capacity": "800 MB"}},
        {
            "tune": {"microbatch_sizes": [2], "split_backward": False, "recompute": ["none"]},
            "topology": {"within": {"bandwidth": "2 GB/s"}},
        },
        {"sites": (2, 2), "tune": {"batch": 4, "microbatch_sizes": [1], "recompute": ["none"]}},
        {
            "model": {"tp": [1, 2], "cp": [1, 2]},
            "tune": {"batch": 2, "microbatch_sizes": [1, 2], "zero_stages": [1, 2, 3], "recompute": ["none", "selective", "full"]},
            "memory": {"capacity": "900 MB"},
        },
        {
            "config": EXPERTS,
            "model": {"tp": [1, 2], "ep": [1, 2, 4]},
            "tune": {"batch": 4, "microbatch_sizes": [1], "zero_stages": [1, 3], "recompute": ["none"]},
        },
        {
            "config": EXPERTS,
            "model": {"ep": [1, 4]},
            "tune": {"batch": 8, "microbatch_sizes": [2], "recompute": ["none", "selective"]},
            "memory": {"capacity": "700 MB"},
        },
        {
            "sites": (2, 2),
            "tune": {"batch": 8, "microbatch_sizes": [2], "recompute": ["none"]},
            "topology": {"between": {"latency": "200 us", "bandwidth": "500 MB/s"}},
        },
    ],
)
def test_what_is_pruned_could_not_be_the_best(sections: dict[str, dict[str, object]], tmp_path: Path) -> None:
    request = tiny_request(tmp_path, **sections)  # type: ignore[arg-type]
    pruned, all_compiled = tuned(request), tuned(request, prune=False)
    assert pruned.best.step_ns == all_compiled.best.step_ns
    step_of = {row.candidate: row.step_ns for row in all_compiled.rows}
    no_room = {row.candidate for row in all_compiled.rows if row.state is CandidateState.NO_ROOM}
    assert {row.candidate for row in pruned.rows if row.state is CandidateState.NO_ROOM} <= no_room
    assert {row.state for row in all_compiled.rows} <= {
        CandidateState.BEST,
        CandidateState.PLANNED,
        CandidateState.NO_ROOM,
        CandidateState.NO_PLAN,
    }
    for row in pruned.rows:
        step_ns = step_of[row.candidate]
        first_ns = simple_bound_ns(request, row.candidate, costs_of(request, row.candidate).totals)
        assert step_ns is None or step_ns >= first_ns
        if row.state is CandidateState.BOUNDED:
            assert row.bound_ns is not None
            assert pruned.best.step_ns is not None
            assert row.bound_ns >= pruned.best.step_ns
            assert step_ns is None or step_ns >= row.bound_ns
        else:
            assert row.step_ns == step_ns
    assert min(step for step in step_of.values() if step) == all_compiled.best.step_ns
    assert pruned.pipelines.startswith("pipeline: " if pruned.best.candidate.ranks > 1 else "do not pipeline: ")
    assert pruned.bound_ns <= (pruned.best.step_ns or 0)


def test_the_first_bounds_are_never_above_the_others(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, sites=(2, 2), tune={"batch": 4, "zero_stages": [0, 1]})
    made = [candidate_problem(request, each).problem for each in candidates(request.choices)]
    assert len(made) > 30
    for each, problem in zip(candidates(request.choices), made, strict=True):
        totals = costs_of(request, each).totals
        least_ns = max(bound.value_ns for bound in lower_bounds(problem))
        assert 0 < work_bound_ns(problem) <= least_ns
        assert 0 < simple_bound_ns(request, each, totals) <= least_ns


@pytest.mark.parametrize(
    "sections",
    [
        {"sites": (2, 2), "tune": {"batch": 8, "zero_stages": [0, 1]}},
        {"tune": {"batch": 4, "semantics": "torch", "split_backward": False, "recompute": ["none"]}, "memory": {"reserve": "0 B"}},
        {"sites": (4, 4), "config": EXPERTS, "model": {"ep": 2}, "tune": {"batch": 16, "microbatch_sizes": [1]}},
    ],
)
def test_the_problem_is_that_of_the_job_that_is_written(sections: dict[str, Any], tmp_path: Path) -> None:
    """The front end reads the job and the profile, in which all quantities are texts."""
    request = tiny_request(tmp_path, **sections)
    tried = candidates(request.choices)
    assert len(tried) > 5
    for each in tried:
        made = candidate_problem(request, each)
        (tmp_path / PROFILE).write_text(costs_of(request, each).profile, encoding="utf-8")
        job = checked_job(source_of_table(job_table(request, each, made), directory=tmp_path, name="other"))
        assert (job.workload, job.layout, job.problem) == (made.workload, made.layout, made.problem)


def test_zero_divides_the_optimizer_state(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, tune={"ranks": [2], "zero_stages": [0, 1], "placements": ["unidirectional"]})
    found = {each.zero_stage: candidate_problem(request, each) for each in candidates(request.choices)}
    tables = {each.zero_stage: job_table(request, each, found[each.zero_stage]) for each in candidates(request.choices)}
    assert tables[0]["data_parallel"].keys() == {"size", "zero_stage", "reduce_scatter"}
    assert tables[1]["data_parallel"].keys() == {"size", "zero_stage", "reduce_scatter", "all_gather"}
    # The all-reduce of ZeRO 0 is in gradients of 4 bytes; ZeRO 1 gathers weights of 2.
    parallel = [made.problem.data_parallel for made in (found[0], found[1])]
    assert parallel[0] is not None and parallel[1] is not None
    for whole, scatter, gather in zip(
        parallel[0].reduce_scatter_ns, parallel[1].reduce_scatter_ns, parallel[1].all_gather_ns, strict=True
    ):
        assert scatter > gather and whole > scatter
    # Without the optimizer's step, and 20 us before each collective.
    least_ns = [collectives_ns(request, each, 10**6, 0) for each in candidates(request.choices)]
    both_ns = {each.zero_stage: both for each, both in zip(candidates(request.choices), least_ns, strict=True)}
    assert both_ns[0] == (2 * both_ns[1][0], 0) and both_ns[1][0] - 20_000 == pytest.approx(2 * (both_ns[1][1] - 20_000), abs=2)
    parameters = sum(layer.parameters for layer in found[0].workload.layers)
    for zero_stage, each in ((0, 18), (1, 12)):
        held = sum(found[zero_stage].static_bytes) - sum(besides.total_bytes for besides in found[zero_stage].besides)
        assert held == each * parameters
        assert tables[zero_stage]["memory"]["static"] == [f"{size} B" for size in found[zero_stage].static_bytes]


def test_a_pipeline_across_sites_has_its_share_of_what_connects_them(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, sites=(4, 4), model={"tp": 2}, tune={"ranks": [2], "placements": ["unidirectional"]})
    made = {each.across: candidate_problem(request, each) for each in candidates(request.choices)}
    topology = {each.across: job_table(request, each, made[each.across])["topology"] for each in candidates(request.choices)}
    assert topology["pipeline"]["sites"] == [1, 1]
    # Two pipelines of tensor-parallel groups of two: four messages at the same time.
    assert topology["pipeline"]["between"] == {"latency": "1 ms", "bandwidth": "2500000000 B/s"}
    assert topology["data-parallel"]["sites"] == [2]
    stage = made["data-parallel"].layout.layers_of_stage[0]
    parameters = sum(layer.parameters for layer in made["data-parallel"].workload.layers[slice(*stage)])
    parallel = made["data-parallel"].problem.data_parallel
    assert parallel is not None
    # Two ranks of two devices share 10 GB/s; half of the gradients crosses in a reduce-scatter. Then comes the optimizer's step.
    crossing_ns = 1_000_000 + -(-4 * parameters * 10**9 // (2 * 2_500_000_000))
    each = next(each for each in candidates(request.choices) if each.across == "data-parallel")
    assert parallel.reduce_scatter_ns[0] == 20_000 + crossing_ns + optimizer_ns(request, each, parameters, 0)


def test_auto_takes_baselines_first_and_then_searches(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, tune={"ranks": [4], "microbatch_sizes": [2], "recompute": ["none"]})
    found = tuned(request, method="auto", time_s=0.0)
    assert found.best.state is CandidateState.BEST
    assert found.plan.certificate.makespan_ns == found.best.step_ns
    assert {row.state for row in found.rows[1:]} <= {CandidateState.NOT_REACHED, CandidateState.BOUNDED, CandidateState.PLANNED}


def test_where_no_baseline_has_room_auto_may_find_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> Plan:
        raise NoPlanFound("greedy{n_sub=1}: holds too much")

    monkeypatch.setattr("schedc.study.tune.planner.baseline_of", nothing)
    alone = {"ranks": [2], "microbatch_sizes": [2], "recompute": ["none"], "placements": ["unidirectional"]}
    found = tune(tiny_request(tmp_path, tune=alone), SearchSettings(), candidate_s=0.0)
    assert (found.best.state, found.best.why_not) == (CandidateState.BEST, "")
    with pytest.raises(NoPlanFound, match="holds too much"):
        tune(tiny_request(tmp_path, tune=alone), SearchSettings(limits=Limits(time_s=0.0)))


@pytest.mark.parametrize(("late", "state"), [(True, CandidateState.NOT_REACHED), (False, CandidateState.NO_PLAN)])
def test_what_the_end_of_the_time_cut_short_may_have_a_plan(
    late: bool, state: CandidateState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds one for the second of two candidates: nobody knows whether there is one if the time ended meanwhile."""
    keys = {"ranks": [2], "microbatch_sizes": [2, 1], "recompute": ["none"], "placements": ["unidirectional"], "zero_stages": [0]}
    request = tiny_request(tmp_path, tune=keys)
    first: list[Plan] = []

    def of_the_first(problem: Problem, settings: SearchSettings, failures: list[Failure]) -> Plan:
        if not first:
            first.append(baseline_of(problem, settings, failures))
            return first[0]
        monkeypatch.setattr(Interruption, "is_late", late)
        raise NoPlanFound("holds too much")

    def none(*_: object) -> None:
        raise NoPlanFound("holds too much")

    monkeypatch.setattr("schedc.study.tune.planner.baseline_of", of_the_first)
    monkeypatch.setattr("schedc.study.tune.planner.compile_problem", none)
    found = tune(request, SearchSettings(), candidate_s=0.0, prune=False)
    (row,) = (row for row in found.rows if row.step_ns is None)
    assert (row.state, row.why_not, found.is_done) == (state, "holds too much", not late)


def test_an_interruption_leaves_the_first_plan(tmp_path: Path) -> None:
    request = tiny_request(tmp_path)
    interruption = Interruption()
    interruption.requested = True
    found = tune(request, SearchSettings(interruption=interruption))
    assert [row.state for row in found.rows[:1]] == [CandidateState.BEST]
    assert (
        CandidateState.NOT_REACHED
        in {row.state for row in found.rows[1:]}
        <= {CandidateState.NOT_REACHED, CandidateState.BOUNDED, CandidateState.NO_ROOM}
    )
    *_, last = shown_tuned(found, tmp_path, interrupted=True)
    assert isinstance(last, Line) and last.text.endswith("; interrupted"), "nothing was kept"
    (tmp_path / KEPT).mkdir()
    *_, last = shown_tuned(found, tmp_path, interrupted=True)
    assert isinstance(last, Line) and last.text.endswith("the same command goes on from kept")


def test_a_first_plan_is_there_where_the_time_is_up(tmp_path: Path) -> None:
    """What all is within ends methods, but for the first that has a schedule."""
    request = tiny_request(tmp_path, tune={"ranks": [4], "microbatch_sizes": [1], "placements": ["unidirectional"]})
    problem = candidate_problem(request, candidates(request.choices)[0]).problem
    interruption = Interruption()
    with interruption.within(0.0):
        late = baseline_of(problem, SearchSettings(interruption=interruption), [])
    whole = baseline_of(problem, SearchSettings(), [])
    assert late.certificate.makespan_ns >= whole.certificate.makespan_ns > 0 and not verify_plan(late)


def test_what_would_not_be_done_in_time_is_left(tmp_path: Path) -> None:
    """A candidate of 49,152 ops is not begun in 3.5 seconds, where nothing says yet how long others take, either."""
    keys = {"batch": 16384, "ranks": [4], "microbatch_sizes": [64, 4], "recompute": ["none"], "placements": ["unidirectional"]}
    found = tuned(tiny_request(tmp_path, tune=keys, model={"efficiency": 0.5}), time_s=3.5)
    assert [row.state for row in found.rows] == [CandidateState.BEST, CandidateState.NOT_REACHED]
    assert found.best.candidate.microbatch_size == 64


def test_where_nothing_fits_the_message_says_why(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, memory={"capacity": "20 MB"})
    told = r"^tiny: none of \d+ candidates has room: .* take 1.8 GiB or more in all, and 4 devices have 71.7 MiB \(17.9 MiB each"
    with pytest.raises(Infeasible, match=told):
        tuned(request)
    request = tiny_request(tmp_path, memory={"capacity": "600 MB"})
    with pytest.raises(NoPlanFound, match=r"^tiny: none of \d+ candidates has a plan; with 4 ranks and 1 in a microbatch: .* MiB"):
        tuned(request)


def test_what_has_no_room_does_not_weaken_the_bound(tmp_path: Path) -> None:
    """Candidates whose own partition has no room have a first bound too, below that of those with a plan."""
    found = tuned(tiny_request(tmp_path, tune={"microbatch_sizes": [1, 2, 4]}, memory={"capacity": "800 MB"}))
    of_state = {
        full: min(row.bound_ns for row in found.rows if row.bound_ns is not None and (row.state is CandidateState.NO_ROOM) is full)
        for full in (True, False)
    }
    assert of_state[True] < of_state[False] == found.bound_ns


def test_where_nothing_divides_the_message_says_what_must(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, tune={"ranks": [3]})
    expected = "tune: found no way to divide the devices and the batch, expected ranks that divide the 4 groups of 1 devices"
    with pytest.raises(InvalidInput, match=re.escape(expected)):
        tuned(request)
    with pytest.raises(InvalidInput, match=r"model\.ep: found 4, expected at most 2, as many devices as there are"):
        tiny_request(tmp_path, config=EXPERTS, sites=(2,), model={"ep": 4})


TABLE = """
source = "a test"
[[measured]]
optimizer = "sgd"
delays = 1
tokens = {same}
[[measured]]
optimizer = "sgd"
delays = [1, 0]
tokens = {stages}
[[measured]]
optimizer = "noted"
delays = 1
loss_above = 0.5
"""
SMALL = {"batch": 4, "microbatch_sizes": [1], "recompute": ["none"], "placements": ["unidirectional"]}
CONVERGENCE = {
    "format": "schedc.convergence",
    "version": 1,
    "name": "run",
    "learning_rate": 0.01,
    "steps": [
        {"step": 0, "loss": 4.0, "gradient_sq": 1.0},
        {"step": 1, "loss": 3.9, "gradient_sq": 1.0, "gradient_change_sq": 0.0004, "weight_change_sq": 0.0001},
    ],
}


def loss_request(
    directory: Path, *, same: float = 1.05, stages: float = 1.02, loss: dict[str, object] | None = None, **sections: Any
) -> TuneRequest:
    """The tiny job with a loss, by a table of what delays cost, unless the keys say otherwise."""
    (directory / "delays.toml").write_text(TABLE.format(same=same, stages=stages), encoding="utf-8")
    (directory / "convergence.json").write_text(json.dumps(CONVERGENCE), encoding="utf-8")
    by_table = {"optimizer": "sgd", "tokens": 10**9, "delay_table": "delays.toml"}
    sections["tune"] = {**SMALL, **sections.get("tune", {})}
    return tiny_request(directory, loss=by_table if loss is None else loss, **sections)


@pytest.mark.parametrize(
    "sections",
    [
        {"same": 1.9, "stages": 1.7, "tune": {"placements": ["unidirectional", "loop"], "ranks": [2]}},
        {"tune": {"versions": ["bounded", "2bw"], "most_delays": [0, 1], "step_microbatches": [2, "all"]}},
        {"loss": {"convergence": "convergence.json", "error": 0.1}, "memory": {"capacity": "900 MB"}},
        {"sites": (2, 2), "topology": {"between": {"latency": "2 ms", "bandwidth": "1 GB/s"}}, "tune": {"ranks": [2, 4]}},
        {"loss": {"optimizer": "noted", "tokens": 10**9, "delay_table": "delays.toml"}},
        # The best whose steps overlap has no delays, and does not refuse those with some.
        {
            **{"same": 1.9, "stages": 3.0, "topology": {"within": {"latency": "5 ms"}}},
            "tune": {"versions": ["bounded", "2bw"], "most_delays": [0], "ranks": [2, 4]},
        },
    ],
)
def test_what_is_pruned_could_not_reach_the_loss_first(sections: dict[str, Any], tmp_path: Path) -> None:
    request = loss_request(tmp_path, **sections)
    pruned, every = tuned(request), tuned(request, prune=False)
    assert pruned.times is not None and every.times is not None
    assert pruned.best.candidate == every.best.candidate and pruned.times.verdict == every.times.verdict
    assert pruned.best.time_to_loss_ns == min(row.time_to_loss_ns for row in every.rows if row.time_to_loss_ns is not None)
    assert pruned.bound_ns <= (pruned.best.time_to_loss_ns or 0)
    found = {row.candidate: row for row in every.rows}
    assert {row.candidate.versions is None for row in every.rows} == {True, False}
    for row in every.rows:
        assert (row.time_to_loss_ns is None) == (row.updates is None)
        if row.time_to_loss_ns is not None:
            assert row.step_ns is not None and row.updates is not None and row.time_to_loss_bound_ns is not None
            assert row.time_to_loss_ns == row.updates * (row.step_ns + (row.update_ns or 0)) >= row.time_to_loss_bound_ns
        elif row.step_ns is not None:
            assert row.state is CandidateState.UNKNOWN and row.why_not == row.basis != ""
    for row in pruned.rows:
        if row.state is CandidateState.BOUNDED:
            time_ns = found[row.candidate].time_to_loss_ns
            assert row.time_to_loss_bound_ns is not None and (time_ns is None or time_ns >= row.time_to_loss_bound_ns)
        else:
            assert row.time_to_loss_ns == found[row.candidate].time_to_loss_ns


def test_the_verdict_both_ways(tmp_path: Path) -> None:
    pays = tuned(loss_request(tmp_path, same=1.0, stages=1.0, tune={"ranks": [2]}, loss=None))
    assert pays.times is not None and pays.times.asynchrony_pays is True
    assert pays.best.candidate.versions is not None and pays.best.factor == 1.0
    assert "the best synchronous one, 2 ranks" in pays.times.verdict
    dear = tuned(loss_request(tmp_path, same=9.0, stages=9.0, tune={"ranks": [2]}, loss=None))
    assert dear.times is not None and dear.times.verdict.startswith("asynchrony does not pay: 2 ranks")
    assert dear.best.candidate.versions is None and "9.00 times the updates" in dear.times.verdict


def test_delays_that_nobody_has_measured_are_a_row_with_a_reason(tmp_path: Path) -> None:
    loss = {"optimizer": "noted", "tokens": 10**9, "delay_table": "delays.toml"}
    found = tuned(loss_request(tmp_path, loss=loss, tune={"versions": ["2bw"]}))
    unknown = [row for row in found.rows if row.candidate.versions is not None]
    assert unknown and {row.state for row in unknown} == {CandidateState.UNKNOWN}
    told = "the table has no number of tokens for noted with delays of 1 everywhere; it says only that the loss is 0.5 above"
    assert {row.why_not for row in unknown} == {told}
    assert found.times is not None and found.times.asynchrony_pays is None
    with pytest.raises(NoPlanFound, match=r"has a plan that is known to reach the loss; 2 ranks .*: the table has no number"):
        tuned(loss_request(tmp_path, loss=loss, tune={"versions": ["2bw"], "modes": ["asynchronous"]}))


def test_a_loss_that_nobody_reaches_is_refused_by_what_each_needs(tmp_path: Path) -> None:
    with pytest.raises(NoPlanFound, match=r"known to reach the loss; 1 rank × 4 pipelines.*: more updates than can be counted$"):
        tuned(loss_request(tmp_path, loss={"convergence": "convergence.json", "error": 1e-300}))


def test_a_verdict_has_both_kinds_where_the_time_ends_soon(tmp_path: Path) -> None:
    request = loss_request(tmp_path, same=1.0, tune={"ranks": [2], "versions": ["2bw", "bounded"]})
    interruption = Interruption()

    def stop(known: Progress) -> None:
        interruption.requested = known.done > 0

    found = tune(request, SearchSettings(interruption=interruption), report=stop)
    assert len(found.rows) > 2 == sum(row.step_ns is not None for row in found.rows)
    assert found.times is not None and found.times.asynchrony_pays is not None


def test_the_end_of_one_candidates_time_ends_no_other(tmp_path: Path) -> None:
    """What is by name for steps that overlap has a limit for each of them; baselines of the others follow, which have none."""
    found = tuned(loss_request(tmp_path, tune={"ranks": [2], "versions": ["2bw"]}), method="modulo")
    assert {row.candidate.versions is None for row in found.rows if row.step_ns is not None} == {True, False}


def test_first_bounds_of_periods_and_jobs_that_are_written(tmp_path: Path) -> None:
    sections = {"placements": ["unidirectional", "loop"], "zero_stages": [0, 1], "versions": ["stash", "2bw", "bounded"]}
    request = loss_request(tmp_path, sites=(2, 2), tune={**sections, "batch": 8})
    made = [(each, candidate_problem(request, each)) for each in candidates(request.choices) if each.versions is not None]
    assert len(made) > 20
    for each, candidate in made:
        totals = costs_of(request, each).totals
        least_ns = max(bound.value_ns for bound in lower_bounds(candidate.problem))
        assert 0 < simple_bound_ns(request, each, totals) <= least_ns
        assert 0 < work_bound_ns(candidate.problem) <= least_ns <= max(least_ns, undelayed_ns(candidate.problem))
        assert sum(stage.update_ns for stage in candidate.problem.stages) >= sum(candidate.collectives_ns)
        (tmp_path / PROFILE).write_text(costs_of(request, each).profile, encoding="utf-8")
        job = checked_job(source_of_table(job_table(request, each, candidate), directory=tmp_path, name="other"))
        assert (job.workload, job.layout, job.problem) == (candidate.workload, candidate.layout, candidate.problem)


def test_updates_have_collectives_and_the_optimizer_on_both_sides(tmp_path: Path) -> None:
    loss = {"optimizer": "sgd", "tokens": 10**9, "delay_table": "delays.toml", "update": "8 ms"}
    request = loss_request(tmp_path, loss=loss, tune={"ranks": [2], "versions": ["2bw"], "step_microbatches": ["all"]})
    ends, overlap = (candidate_problem(request, each) for each in candidates(request.choices))
    parallel = ends.problem.data_parallel
    assert parallel is not None and overlap.problem.data_parallel is None
    parameters = [stage.parameters for stage in ends.problem.stages]
    own_ns = [-(-8_000_000 * count // (2 * sum(parameters))) for count in parameters]  # ZeRO 1 halves it
    assert ends.update_ns == max(own_ns) and overlap.update_ns == 0
    collectives = zip(parallel.reduce_scatter_ns, parallel.all_gather_ns, own_ns, strict=True)
    assert [stage.update_ns for stage in overlap.problem.stages] == [sum(each) for each in collectives]
    assert [stage.version_bytes for stage in overlap.problem.stages] == [2 * count for count in parameters]

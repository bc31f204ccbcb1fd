"""The driver over layouts: sound, within what is open, no worse than the baselines, repeatable, and kept when interrupted."""

from __future__ import annotations

import signal
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.all_layouts import tiny_workload
from inputs.few_layouts import seek_few_layouts
from inputs.layout_relations import OpenJob, random_open_job
from oracles.relations import random_relation

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.compile import certify
from schedc.compile.certify import check_plan
from schedc.compile.driver import OpenLayouts, compile_question
from schedc.errors import Defect, Infeasible, NoPlanFound, Unsupported
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir.layout import OpenLayout
from schedc.ir.network import Link, Network
from schedc.ir.plan import BoundName, Scope
from schedc.ir.workload import Device
from schedc.lower.placement import place
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.interruption import Interruption
from schedc.solvers.search.local import Local
from schedc.verify.layout import verify_open_layout

if TYPE_CHECKING:
    from schedc.analysis.bounds.lower_bounds import Bound
    from schedc.compile.driver import Compiled
    from schedc.ir.problem import Problem
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import LayoutsProgress


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    seek_few_layouts(monkeypatch)


def tiny(seed: int, layers: int = 5, ranks: int = 2, microbatches: int = 3) -> Workload:
    return tiny_workload(Random(seed), layers=layers, ranks=ranks, microbatches=microbatches)


def compiled(workload: Workload, open_layout: OpenLayout, method: str, work: float = 0.3) -> Compiled:
    return compile_question(
        OpenLayouts(workload, open_layout), SearchSettings(method=method, limits=Limits(deterministic=work, workers=1))
    )


OPENINGS = (
    OpenLayout(chunks=2),
    OpenLayout(chunks=2, recompute_is_open=True),
    OpenLayout(placement=place("unidirectional", 2)),
    OpenLayout(placement=place("wave", 2, 2), recompute_is_open=True),
    OpenLayout(layers_of_stage=((0, 1), (1, 3), (3, 5))),
    OpenLayout(placement=place("unidirectional", 2), layers_of_stage=((0, 3), (3, 5)), recompute_is_open=True),
)


@pytest.mark.parametrize("method", ["greedy{n_sub=2}", "local"])
@pytest.mark.parametrize("opening", range(len(OPENINGS)))
def test_the_plan_is_sound_and_its_bound_holds_for_all_layouts(opening: int, method: str) -> None:
    open_layout, without = OPENINGS[opening], 0
    for seed in range(2):
        workload = tiny(10 * opening + seed)
        try:
            made = compiled(workload, open_layout, method)
        except (Infeasible, NoPlanFound):  # by chance there is little memory, or there are few links
            without += 1
            continue
        plan, certificate = made.plan, made.plan.certificate
        assert made.layout is not None
        assert verify_open_layout(workload, open_layout, made.layout) == ()
        assert check_plan(plan) == ()
        assert simulate(plan.problem, plan.schedule()).objective_ns(plan.problem.objective) == certificate.objective_ns
        bound_ns = layout_bound(workload, open_layout).value_ns
        assert bound_ns <= certificate.lower_bound_ns <= certificate.objective_ns
        assert certificate.scope is Scope.LAYOUT
        assert certificate.bound in (BoundName.LAYOUTS, BoundName.CPSAT)
        assert not (certificate.bound is BoundName.CPSAT and (plan.parts or open_layout.recompute_is_open))
        known = [each.objective_ns for each in made.candidates if each.objective_ns is not None]
        assert method != "local" or certificate.objective_ns <= min(known)
        assert parse_plan(plan_json(plan), "plan.json") == plan
    assert without < 2


def test_a_bound_of_the_chosen_layout_above_its_plan_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is held against its own problem's bounds, too, though it claims the one over all layouts."""

    def raised(problem: Problem, limits: Limits) -> tuple[tuple[Bound, ...], bool]:
        bounds, cut = bounds_within(problem, limits)
        return tuple(replace(bound, value_ns=10**12) for bound in bounds), cut

    bounds_within = certify.bounds_within
    monkeypatch.setattr(certify, "bounds_within", raised)
    with pytest.raises(Defect, match="1000000000000 ns"):
        compiled(tiny(0), OPENINGS[0], "greedy{n_sub=2}")


def test_the_same_seed_gives_the_same_plan() -> None:
    workload, open_layout = tiny(3), OpenLayout(chunks=2, recompute_is_open=True)
    plans = {plan_json(compiled(workload, open_layout, method).plan) for method in ("local", "local")}
    assert len(plans) == 1
    assert all(b'"reproducible"' not in plan for plan in plans)


def test_a_constructive_method_makes_the_schedule_alone() -> None:
    made = compiled(tiny(3), OpenLayout(chunks=2), "1f1b")
    assert made.plan.made_by.method == "1f1b"
    assert made.layout is not None and len(made.layout.rank_of_stage) == 2
    assert made.ended in ("the method is done", "proven optimal")


def test_no_layout_has_room() -> None:
    workload = replace(tiny(1), devices=(Device(limit_bytes=0),) * 2)
    with pytest.raises(Infeasible, match="no layout has room"):
        compiled(workload, OpenLayout(chunks=1), "auto")


def test_without_links_for_one_stage_on_each_rank_the_message_is_of_links() -> None:
    """Every rank is connected to rank 0 alone."""
    workload = tiny_workload(Random(1), layers=5, ranks=4, microbatches=2)
    star = tuple(Link(source=a, destination=b, latency_ns=1) for pair in ((0, 1), (0, 2), (0, 3)) for a, b in (pair, pair[::-1]))
    workload = replace(workload, network=Network(site_of_rank=(0, 1, 2, 3), links=star))
    with pytest.raises(Infeasible, match="no order of the ranks has links both ways"):
        compiled(workload, OpenLayout(chunks=1), "auto")


def test_a_constructive_method_that_fits_no_layout_says_why() -> None:
    with pytest.raises(NoPlanFound, match=r"no layout with a schedule found: .*zb-v needs a wave placement") as refusal:
        compiled(tiny(3), OpenLayout(chunks=1), "zb-v")
    assert ": ;" not in str(refusal.value)


def test_an_interruption_keeps_the_first_plan() -> None:
    interruption = Interruption(requested=True)
    made = compile_question(OpenLayouts(tiny(3, microbatches=20), OpenLayout(chunks=2)), SearchSettings(interruption=interruption))
    assert made.ended == "interrupted"
    assert len(made.candidates) < 5
    assert not made.plan.made_by.reproducible


def test_auto_proves_a_tiny_one_over_all_layouts() -> None:
    proven = 0
    for seed in range(4):
        made = compiled(tiny(seed, layers=4), OpenLayout(chunks=1), "auto", work=4.0)
        certificate = made.plan.certificate
        assert certificate.scope is Scope.LAYOUT
        proven += certificate.gap == 0
        assert (certificate.bound is BoundName.CPSAT) == bool(made.solver_log) == bool(certificate.solver_log_sha256)
    assert proven == 4


def test_where_any_stage_may_recompute_those_that_do_not_are_listed() -> None:
    """Else an answer may be worse than where none may. What is proven of them says nothing of the others."""
    job = random_relation(554).second
    assert isinstance(job, OpenJob)
    workload = job.workload
    must, may = (compiled(workload, OpenLayout(chunks=1, recompute_is_open=is_open), "auto") for is_open in (False, True))
    assert may.plan.certificate.objective_ns <= must.plan.certificate.objective_ns
    assert must.plan.certificate.bound is BoundName.CPSAT
    assert may.plan.certificate.bound is BoundName.LAYOUTS


def test_where_only_recomputation_makes_room_there_is_a_plan() -> None:
    """Though nothing is left to list."""
    workload = random_open_job(Random(19)).workload
    short = replace(workload, devices=(replace(workload.devices[0], capacity_bytes=15),) * workload.ranks)
    with pytest.raises((Infeasible, NoPlanFound)):
        compiled(short, OpenLayout(chunks=2), "auto")
    made = compiled(short, OpenLayout(chunks=2, recompute_is_open=True), "auto")
    assert made.layout is not None and made.layout.recomputed
    (listed,) = (each for each in made.candidates if each.method == "layouts one by one")
    assert listed.why_not == "none has room without recomputation"


def test_adaptis_chooses_layout_and_schedule() -> None:
    found = [compiled(tiny(3), OpenLayout(chunks=2), "adaptis") for _ in range(2)]
    assert found[0].plan == found[1].plan
    rows = {each.method: each.objective_ns for each in found[0].candidates}
    assert found[0].plan.certificate.objective_ns == rows["adaptis"] == min(each for each in rows.values() if each is not None)


def test_a_search_that_works_nowhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(search: Local, *_: object) -> None:
        raise Unsupported(f"{search.name} is not for this")

    monkeypatch.setattr(Local, "improve", refuse)
    with pytest.raises(Unsupported, match="local is not for this"):
        compiled(replace(tiny(5), split_backward=False), OpenLayout(chunks=2), "local")


@pytest.mark.parametrize("during", ["layouts one by one", "balanced loop 2 auto", pytest.param("layouts", marks=pytest.mark.slow)])
def test_a_signal_keeps_the_best_plan(during: str) -> None:
    interruption, running = Interruption(), [""]

    def on_layouts(_known: LayoutsProgress) -> None:
        if running[-1] == during:
            signal.raise_signal(signal.SIGINT)

    workload = replace(tiny(3, layers=6, microbatches=6), split_backward=True)
    open_layout = OpenLayout(chunks=2, recompute_is_open=during != "layouts one by one")
    with interruption.listening():
        made = compile_question(
            OpenLayouts(workload, open_layout),
            SearchSettings(
                limits=Limits(deterministic=1.0, workers=1),
                on_method=running.append,
                on_layouts=on_layouts,
                interruption=interruption,
            ),
        )
    assert running[-1] == during
    assert interruption.requested
    assert made.ended == "interrupted"
    assert not made.plan.made_by.reproducible
    assert made.plan.certificate.objective_ns == min(each.objective_ns for each in made.candidates if each.objective_ns is not None)

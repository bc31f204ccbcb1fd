"""What must hold for a job that leaves the layout open: checks of the fuzzer beside `fuzz_checks`, which calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inputs.random_layouts import random_layout
from inputs.tiny_problems import random_schedule

from oracles.fuzz_problems import too_little_memory
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_job
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir.plan import Scope
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.verify.layout import verify_layout, verify_open_layout
from schedc.verify.plan.channels import needs_of
from schedc.verify.plan.replay import replay
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from oracles.findings import Checks
    from schedc.compile.driver import Compiled
    from schedc.frontend.job import Job
    from schedc.ir.layout import Layout


def check_open_layout(job: Job, checks: Checks, *, costly: bool) -> None:
    """A job that leaves the layout open: no layout drawn by chance has a schedule below the plan's bound; the plan is what it says.

    What the plan says is found out from the layout alone: the front end's workload in it is the plan's problem, the replay has the
    simulator's times, and the bounds of that one problem are not below those over all.
    """
    workload, open_layout = job.workload, job.open_layout
    assert open_layout is not None
    placed, bounds = open_layout.placement, open_layout.layers_of_stage
    for what, is_open in (
        ("placement", placed is None),
        ("partition", bounds is None),
        ("recompute", open_layout.recompute_is_open),
    ):
        checks.counts[f"feature open {what}"] += is_open
    random = checks.random("layouts")
    known: list[tuple[Layout, int]] = []
    for _ in range(20 if checks.thorough else 6):
        layout = random_layout(random, workload, open_layout)
        with checks.step("layout by chance", Unsupported):
            if verify_layout(workload, layout) or too_little_memory(problem := problem_of(workload, layout)):
                continue
            schedule = random_schedule(random, problem) if random.random() < 0.3 else constructive("greedy{n_sub=1}")(problem)
            if schedule is not None and not verify_schedule(problem, schedule):
                known.append((layout, simulate(problem, schedule).objective_ns(problem.objective)))
    methods = ["greedy", "greedy{n_sub=2}", "spread", "1f1b", "zb-h1", *(["auto"] if costly else [])]
    for method in methods if checks.thorough else [checks.random("methods").choice(methods[-2:] if costly else methods)]:
        found: list[Compiled] = []
        settings = SearchSettings(method=method, limits=Limits(deterministic=0.05, workers=1))
        with checks.step(f"open {method}", NoPlanFound, Unsupported):
            try:
                found = [compile_job(job, settings) for _ in range(2)]
            except Infeasible as error:
                checks.counts[f"open {method}: Infeasible"] += 1
                if known:
                    checks.fail("open: infeasible, but a layout has a schedule", f"{error}; {known[0][0]}")
        for compiled in found:  # the compiler goes on with what other methods found
            for failure in compiled.failures:
                checks.fail(f"open, method {failure.method.partition('{')[0]}: {failure.error} in {failure.place}", failure)
        if not found:
            continue
        first, second = (plan_json(compiled.plan) for compiled in found)
        if first != second and found[0].plan.made_by.reproducible:
            checks.fail(f"open {method.partition('{')[0]}: not the same bytes twice", first[:400])
        _check_open_plan(job, found[0], known, checks)


def _check_open_plan(job: Job, compiled: Compiled, known: list[tuple[Layout, int]], checks: Checks) -> None:
    """What a plan says whose layout was chosen."""
    workload, plan, layout = job.workload, compiled.plan, compiled.layout
    assert job.open_layout is not None
    checks.counts["plans of open layouts"] += 1
    if layout is None:
        checks.fail("open: no layout is named", plan.name)
        return
    if violations := verify_open_layout(workload, job.open_layout, layout):
        checks.fail(f"open: rule {violations[0].rule}", violations[0])
        return
    if problem_of(workload, layout) != plan.problem:
        checks.fail("open: the plan's problem is another", f"{layout}")
    timeline = simulate(plan.problem, plan.schedule())
    ends_ns = [list(ends) for ends in replay(plan, needs_of(plan)).ends_ns]
    if ends_ns != [timeline.end_ns(rank) for rank in range(timeline.ranks)]:
        checks.fail("open: replay against simulator", f"{ends_ns}")
    claims = plan.certificate
    objective_ns = timeline.objective_ns(plan.problem.objective)
    if claims.objective_ns != objective_ns or claims.lower_bound_ns > objective_ns:
        checks.fail("open: claims", f"{claims} for {objective_ns} ns")
    for other, other_ns in known:
        if claims.scope is Scope.LAYOUT and claims.lower_bound_ns > other_ns:
            checks.fail("open: bound too high", f"{claims.bound} {claims.lower_bound_ns} ns, but {other} takes {other_ns} ns")
    content = plan_json(plan)
    if parse_plan(content, "plan") != plan:
        checks.fail("open: another plan comes back", content[:200])

"""The driver where a layout is open: Workload → layout and Schedule → verified → Plan → verified.

`compile_layouts` chooses the layout; `compile_job` compiles a job, whether its layout is open or given. `layout_of_plan` and
`check_scope` are for plans that were made so.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.analysis.bounds.clock import Clock
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import Bound, bounds_in_time
from schedc.compile.fixed_layout import CHECKS_S_PER_OP, MOST_BOUNDED_OPS, Compiled, certify, compile_problem, defects_named
from schedc.errors import Defect, Infeasible, InvalidInput
from schedc.ir.layout import Layout
from schedc.ir.plan import BoundName, MadeBy, Scope
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import NO_LIMITS, Limits
from schedc.verify.open_layout import verify_open_layout
from schedc.verify.violation import Violation
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.frontend.job import Job
    from schedc.ir.layout import OpenLayout
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.workload import Workload
    from schedc.solvers.common.incumbent import Improvement
    from schedc.solvers.common.interruption import Interruption
    from schedc.solvers.driver.best_layout import LayoutsProgress


OWN_BOUNDS_SHARE = 0.05
"""Of the time limit, for the bounds of the plan's own layout, which it is held against."""


def compile_job(
    job: Job,
    *,
    method: str,
    limits: Limits,
    report: Callable[[Improvement], None] = lambda _: None,
    on_method: Callable[[str], None] = lambda _: None,
    on_layouts: Callable[[LayoutsProgress], None] = lambda _: None,
    interruption: Interruption | None = None,
) -> Compiled:
    """The best plan that the method finds for the job; see `compile_layouts` and `compile_problem`."""
    if job.open_layout is None:
        return compile_problem(
            job.problem,
            method=method,
            limits=limits,
            job_sha256=job.sha256,
            report=report,
            on_method=on_method,
            interruption=interruption,
        )
    return compile_layouts(
        job.workload,
        job.open_layout,
        method=method,
        limits=limits,
        job_sha256=job.sha256,
        report=report,
        on_method=on_method,
        on_layouts=on_layouts,
        interruption=interruption,
    )


def compile_layouts(
    workload: Workload,
    open_layout: OpenLayout,
    *,
    method: str = "auto",
    limits: Limits = NO_LIMITS,
    job_sha256: str = "",
    report: Callable[[Improvement], None] = lambda _: None,
    on_method: Callable[[str], None] = lambda _: None,
    on_layouts: Callable[[LayoutsProgress], None] = lambda _: None,
    interruption: Interruption | None = None,
) -> Compiled:
    """The best plan over the layouts that are open; its lower bound holds for all of them.

    Args:
        workload: what must be trained and on what.
        open_layout: what may be chosen.
        method: `auto`, or a method's name with options in braces.
        limits: when a search ends, and its seed.
        job_sha256: of the job file, for the plan.
        report: is called with each better schedule or bound at once.
        on_method: is called with the name of what begins.
        on_layouts: is called now and then while layouts are sought.
        interruption: what listens to signals, if something does.

    Raises:
        InvalidInput: the workload contradicts itself, or the method's name or options are wrong.
        Infeasible: no layout has room on its ranks.
        NoPlanFound: no method found a schedule within the memory limits.
        Defect: a method's schedule, or the plan made of it, breaks a rule.
    """
    from schedc.solvers.driver.layouts import solve_layouts  # loads much, which a job with a layout does without

    begun = time.perf_counter()
    violations = verify_workload(workload)
    if violations:
        raise InvalidInput(f"{workload.name}: {violations[0]}")
    given = limits
    if limits.time_s is not None:
        ops = 3 * workload.microbatches * 2 * workload.ranks
        kept_s = ops * CHECKS_S_PER_OP + OWN_BOUNDS_SHARE * limits.time_s * min(1.0, ops / MOST_BOUNDED_OPS)
        given = dataclasses.replace(limits, time_s=max(0.5 * limits.time_s, limits.time_s - kept_s))
    with defects_named(workload.name, method):
        outcome = solve_layouts(
            workload,
            open_layout,
            method,
            given,
            report=report,
            on_method=on_method,
            on_layouts=on_layouts,
            interruption=interruption,
        )
    best, known = outcome.best, outcome.known
    unsound = verify_open_layout(workload, open_layout, best.layout)
    if unsound:
        raise Defect(f"{workload.name}: the layout chosen breaks a rule: {unsound[0]}")
    made_by = MadeBy(
        schedc=__version__, method=known.found_by, seed=limits.seed, job_sha256=job_sha256, reproducible=not known.cut_short
    )
    bounds: tuple[Bound, ...] = ()
    if limits.time_s is not None and limits.deterministic is None and best.problem.num_ops <= MOST_BOUNDED_OPS:
        bounds = bounds_in_time(best.problem, Clock(OWN_BOUNDS_SHARE * limits.time_s))
    plan = certify(best.problem, best.schedule, made_by, proven=known, scope=Scope.LAYOUT, bounds=bounds)
    return Compiled(
        plan=plan,
        seconds=time.perf_counter() - begun,
        candidates=outcome.candidates,
        history=tuple(known.history),
        solver_log=known.solver_log,
        failures=outcome.failures,
        ended=outcome.ended,
        layout=best.layout,
        layouts=known.layouts,
        chosen=known.title,
    )


def bound_over_layouts(workload: Workload, open_layout: OpenLayout) -> Bound:
    """The lower bound over all layouts that are open.

    Raises:
        Infeasible: no layout has room on its ranks.
    """
    bound = layout_bound(workload, open_layout)
    if bound.value_ns is None:
        raise Infeasible(f"{workload.name}: {bound.detail}")
    return Bound(name=BoundName.LAYOUTS, value_ns=bound.value_ns, detail=bound.detail)


def layout_of_plan(plan: Plan, workload: Workload, open_layout: OpenLayout) -> tuple[Layout, tuple[Violation, ...]]:
    """The layout that a plan has, and every rule of what the job leaves open that it breaks."""
    problem = plan.problem
    known = [stage.layers for stage in problem.stages]
    given = open_layout.layers_of_stage
    layers = tuple(each for each in known if each is not None)
    if len(layers) < len(known):
        layers = given or ()
    layout = Layout(
        rank_of_stage=tuple(stage.rank for stage in problem.stages),
        paths=problem.paths,
        layers_of_stage=layers,
        recomputed=frozenset(index for index, stage in enumerate(problem.stages) if stage.recompute),
        placement=problem.placement,
    )
    return layout, verify_open_layout(workload, open_layout, layout)


def problem_for(plan: Plan, job: Job) -> tuple[Problem | None, tuple[Violation, ...]]:
    """The problem that the job makes in the plan's layout where it leaves the layout open, else its own.

    Returns:
        The problem, or None with the violations that keep the plan's layout from being one of the job's.
    """
    if job.open_layout is None:
        return job.problem, ()
    layout, violations = layout_of_plan(plan, job.workload, job.open_layout)
    return (None, violations) if violations else (problem_of(job.workload, layout), ())


def check_scope(plan: Plan, job: Job) -> tuple[Violation, ...]:
    """A bound over layouts is the one that is computed again over those that the job leaves open.

    Where the job gives the layout (`compile --write-job` wrote it), it says nothing of the others, and nothing is checked.
    """
    claims = plan.certificate
    if claims.scope is not Scope.LAYOUT or job.open_layout is None:
        return ()
    bound_ns = layout_bound(job.workload, job.open_layout).value_ns
    if bound_ns is None:
        return (Violation("scope", "certificate.lower_bound_ns", "claims a bound, but no layout of the job has room"),)
    if bound_ns > claims.objective_ns:
        message = f"the plan's {claims.objective} of {claims.objective_ns} ns is below the bound over layouts of {bound_ns} ns"
        return (Violation("scope", "certificate", message),)
    if claims.bound is BoundName.LAYOUTS and claims.lower_bound_ns != bound_ns:
        message = f"claims {claims.lower_bound_ns} ns, but the bound over layouts is {bound_ns} ns"
        return (Violation("scope", "certificate.lower_bound_ns", message),)
    return ()

"""What must hold for a job whose steps overlap: the checks of the fuzzer beside `fuzz_checks`, which calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inputs.periods import any_period, period_plan

from oracles.modulo_brute_force import TooMany, least_period
from schedc.analysis.bounds.period import period_bounds
from schedc.analysis.simulation.period import steady_state
from schedc.analysis.simulation.unroll import depth_of
from schedc.compile.driver import compile_problem
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.lower.run import run_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.verify.plan.checks import verify_plan
from schedc.verify.plan.period import is_period
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from oracles.findings import Checks
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

CONSTRUCTIVE = ("pipedream", "pipedream-2bw", "steady", "one-by-one")
PUBLISHED = ("pipedream", "pipedream-2bw")
"""They do not ask what memory holds, nor how late an update may be."""
BRUTE_FORCE_OPS = 14
"""Of a step, updates included: larger ones have too many orders."""
MOST_COMBINATIONS = 100_000


def check_period(problem: Problem, checks: Checks, *, costly: bool) -> None:
    """Methods and periods by chance, bounds, verifier, runs and text; where it is `costly` CP-SAT and brute force, too."""
    with checks.step("period: bounds"):
        bounds = {name.value: value_ns for name, value_ns, _ in period_bounds(problem)}
    if checks.findings:
        return
    random = checks.random("periods")
    schedules: list[tuple[str, Schedule]] = []
    for method in CONSTRUCTIVE if checks.thorough else random.sample(CONSTRUCTIVE, 2):
        with checks.step(f"period: {method}", Unsupported, Infeasible):
            schedules.append((method, constructive(method)(problem)))
    schedules += [("a period by chance", any_period(random, problem)) for _ in range(2)]
    shortest_ns: int | None = None
    for name, schedule in schedules:
        with checks.step(f"period: checked {name}"):
            if violations := verify_schedule(problem, schedule):
                if name not in PUBLISHED and name in CONSTRUCTIVE and violations[0].rule != "memory-limit":
                    checks.fail(f"{name}: rule {violations[0].rule}", violations[0])
                continue
            period_ns = steady_state(problem, schedule).period_ns
            shortest_ns = period_ns if shortest_ns is None else min(period_ns, shortest_ns)
            if not is_period(problem, schedule, period_ns) or (period_ns and is_period(problem, schedule, period_ns - 1)):
                checks.fail("period: simulator against verifier", f"{name}: {period_ns} ns")
            for bound, value_ns in bounds.items():
                if value_ns > period_ns:
                    checks.fail(f"period: bound {bound} too high", f"{value_ns} ns, but {name} takes {period_ns} ns")
            check_plan(period_plan(problem, schedule), depth_of(problem, schedule), name, checks)
    for method in ("auto", "modulo") if costly else (random.choice(("steady", "one-by-one")),):
        bound_ns, found_ns = _compile_twice(problem, method, shortest_ns, checks)
        if costly and shortest_ns is not None and found_ns is not None:
            shortest_ns = min(shortest_ns, found_ns)
            if sum(3 for _ in problem.blocks()) + len(problem.stages) <= BRUTE_FORCE_OPS:
                with checks.step("period: brute force", TooMany):
                    least_ns = least_period(problem, depth=1, upper=shortest_ns, most=MOST_COMBINATIONS)
                    if least_ns is not None and least_ns < bound_ns:
                        checks.fail(f"period: {method} proves too much", f"{bound_ns} ns, brute force finds {least_ns} ns")


def check_plan(plan: Plan, depth: int, name: str, checks: Checks) -> None:
    """The verifier accepts the period and runs of it, whose memory it claims; its text gives it back."""
    checks.counts["periods as plans"] += 1
    if violations := verify_plan(plan):
        checks.fail(f"period plan: rule {violations[0].rule}", f"{name}: {violations[0]}")
        return
    content = plan_json(plan)
    if (again := parse_plan(content, "plan")) != plan or plan_json(again) != content:
        checks.fail("period text: another plan comes back", content[:200])
    for steps in (1, depth + 2, 3 * depth + 3):
        run = run_of(plan, steps)
        if violations := verify_plan(run):
            checks.fail(f"run of a period: rule {violations[0].rule}", f"{name}, {steps} steps: {violations[0]}")
            return
        peaks = [run.certificate.peak_activation_bytes, plan.certificate.peak_activation_bytes]
        if any(of_run > of_period for of_run, of_period in zip(*peaks, strict=True)):
            checks.fail("run of a period: more memory than its period", f"{name}, {steps} steps: {peaks}")
    if peaks[0] != peaks[1]:
        checks.fail("run of a period: less memory than its period in a run that shows all", f"{name}: {peaks}")


def _compile_twice(problem: Problem, method: str, known_ns: int | None, checks: Checks) -> tuple[int, int | None]:
    """The bound and the period that the compiler finds; the same bytes twice, where it says so."""
    found: list[Plan] = []
    with checks.step(f"period: compile {method}", NoPlanFound, Unsupported):
        try:
            for _ in range(2):
                limits = Limits(deterministic=1.0, workers=1)
                compiled = compile_problem(problem, SearchSettings(method=method, limits=limits))
                found.append(compiled.plan)
                for failure in compiled.failures:
                    checks.fail(f"period: method {failure.method}: {failure.error} in {failure.place}", failure)
        except Infeasible as error:
            if known_ns is not None:
                checks.fail("period: infeasible, but there is one", f"{error}; {known_ns} ns")
            return 0, None
        if plan_json(found[0]) != plan_json(found[1]) and found[0].made_by.reproducible:
            checks.fail(f"period: compile {method}: not the same bytes twice", plan_json(found[0])[:400])
    if not found:
        return 0, None
    claims = found[0].certificate
    if known_ns is not None and claims.lower_bound_ns > known_ns:
        checks.fail(
            f"period: bound of {method} too high", f"{claims.bound} {claims.lower_bound_ns} ns, but one takes {known_ns} ns"
        )
    return claims.lower_bound_ns, claims.makespan_ns

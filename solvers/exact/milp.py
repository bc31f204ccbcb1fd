"""HiGHS as a solver of the MILP: a Problem and an incumbent in, a better schedule and a proven lower bound out.

The model is `schedc.models.milp`, built with PuLP; this module runs it: start, limits, seed, progress. HiGHS's objective is never
trusted: schedules are timed by the simulator, and only the bound is HiGHS's own word, less what its tolerances are worth. It holds
for schedules of blocks cut as the model's are.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from schedc.analysis.gap import check_bound
from schedc.analysis.simulation.memory import exceeded_limit
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import BoundName, Objective, Problem, Schedule
from schedc.models.blocks import NothingAtMost, blocks_of, grid_of
from schedc.solvers.common.base import Limits, Solved, SolverStatus, bound_of_none
from schedc.solvers.common.interruption import wait_for
from schedc.solvers.common.method import Search
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from schedc.models.milp.variables import MilpVariables
    from schedc.solvers.common.incumbent import Incumbent

MOST_TICKS = 100_000
"""A horizon of more ticks than this is rounded to a coarser grid, on which HiGHS's tolerances stay far below a tick."""

TOLERANCE = 1e-9
"""By how much HiGHS may break a row, and an order variable may differ from 0 and 1."""

CHECKS_PER_UNIT = 5
"""HiGHS tells no count of its work while it runs; it asks so often whether to stop, in one unit of a deterministic limit."""

REMEDY = "install them with: pip install pulp 'highspy<1.15' (from 1.15 on it does not load beside ortools 9.15)"


class Milp(Search, frozen=True):
    """HiGHS from the best schedule of whole blocks."""

    name, place, graphs, slices = "milp", 280, True, True

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better schedules, and a bound at the end."""
        solved = solve_milp(
            incumbent.problem,
            incumbent.start,
            limits=limits,
            known_bound_ns=incumbent.bound_ns,
            on_schedule=lambda schedule: incumbent.offer_valid(schedule, self.name),
        )
        incumbent.take_solved(solved, BoundName.MILP, limits)


def solve_milp(
    problem: Problem,
    incumbent: Schedule,
    *,
    limits: Limits,
    known_bound_ns: int = 0,
    on_schedule: Callable[[Schedule], None] = lambda _: None,
    on_bound: Callable[[int], None] = lambda _: None,
    weight_parts: int = 1,
) -> Solved:
    """Improve the incumbent, or prove that nothing is better.

    Arguments are those of `solve_cpsat`, but HiGHS takes no number of workers; `weight_parts`: into how many equal parts every W is
    cut.

    Raises:
        Unsupported: PuLP or HiGHS is not there.
        Defect: a bound is above the incumbent's objective, or HiGHS says that there is no schedule as good as the incumbent.
    """
    pulp, highspy = _libraries()
    from schedc.models.milp.extract import fused_values, order_values, schedule_of_milp
    from schedc.models.milp.model import build

    timeline = simulate(problem, incumbent)
    best, best_ns = incumbent, timeline.objective_ns(problem.objective)
    check_bound(known_bound_ns, best_ns, "known before milp")
    grid = grid_of(problem, timeline.makespan_ns, MOST_TICKS)
    blocks = blocks_of(problem, grid, weight_parts)
    # Rounding every duration down can shorten how late a rank begins more than how late it ends, and so lengthen its span.
    exact = grid.exact and weight_parts == 1  # equal parts of a W need not be whole ticks
    is_bound = exact or problem.objective is Objective.MAKESPAN
    # With a rounded grid a schedule can take fewer ticks than its nanoseconds say.
    floor = -(-known_bound_ns // grid.tick_ns) if exact else 0
    try:
        variables = build(problem, blocks, floor, grid.ticks(best_ns))
    except NothingAtMost as reason:  # the incumbent does what the model's blocks cannot, and is better than all that they can
        bound_ns = bound_of_none(blocks, incumbent, best_ns, is_bound=is_bound, claimed_by="milp")
        return Solved(
            schedule=best, objective_ns=best_ns, lower_bound_ns=bound_ns, status=SolverStatus.INFEASIBLE, log=(str(reason),)
        )
    binaries = 3 if blocks.fused else 1  # in a row: an order, and whether each of two backwards is fused
    # The largest big-M: no start or begin is later than its upper bound, and no task is longer than the longest.
    horizon = max(variable.upBound or 0 for variable in variables.model.variables()) + max(blocks.duration.values())
    slack = TOLERANCE * (1 + binaries * horizon) * (len(variables.start) + len(variables.send))

    def proven_ns(ticks: float) -> int:
        """What HiGHS's bound says of the true problem.

        Each row of a longest path may be broken by the tolerance, and by that times its big-Ms, which are at most the horizon. The
        optimum is an integer number of ticks (see the model), so that what is left is rounded up.
        """
        return ceil(ticks - slack) * grid.tick_ns if is_bound and isfinite(ticks) else 0

    highs = _loaded(pulp, variables)
    options = _options(limits, slack)
    for option, value in options.items():
        if highs.setOptionValue(option, value) != highspy.HighsStatus.kOk:
            raise ValueError(f"HiGHS refuses {value} for its option {option}")
    starts = {variables.order[pair].index: value for pair, value in order_values(variables, incumbent, timeline).items()}
    starts |= {variables.fused[op].index: value for op, value in fused_values(variables, incumbent).items()}
    highs.setSolution(len(starts), list(starts), list(starts.values()))

    def hear_solution(event: Any) -> None:
        solution, ticks = event.data_out.mip_solution, event.data_out.objective_function_value
        if ticks < variables.objective.upBound - slack:  # the start that HiGHS is given comes back as its first solution
            on_schedule(schedule_of_milp(variables, problem, lambda variable: float(solution[variable.index])))

    best_heard_ns = checks = 0
    stop = threading.Event()

    def hear_check(event: Any) -> None:
        nonlocal best_heard_ns, checks
        checks += 1
        if (bound_ns := proven_ns(event.data_out.mip_dual_bound)) > best_heard_ns:
            best_heard_ns = bound_ns
            on_bound(bound_ns)
        if stop.is_set() or (limits.deterministic is not None and checks >= CHECKS_PER_UNIT * limits.deterministic):
            event.interrupt()

    def hear_stop(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    highs.cbMipImprovingSolution.subscribe(hear_solution)
    highs.cbMipInterrupt.subscribe(hear_check)
    highs.cbSimplexInterrupt.subscribe(hear_stop)
    with ThreadPoolExecutor(1) as thread:  # so that an interruption is noticed at once
        job = thread.submit(highs.run)
        ended_by = wait_for([job], stop.set)
    job.result()
    status = _status(highspy, highs)
    info = highs.getInfo()
    # With nothing open, the model is linear and has no bound but its optimum.
    is_mip = variables.order or variables.fused
    bound_ns = proven_ns(info.mip_dual_bound if is_mip else info.objective_function_value)
    if status is SolverStatus.INFEASIBLE:
        bound_ns = bound_of_none(blocks, incumbent, best_ns, is_bound=is_bound, claimed_by="milp")
    if status in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE):
        values = highs.getSolution().col_value
        found = schedule_of_milp(variables, problem, lambda variable: float(values[variable.index]))
        if not verify_schedule(problem, found) and exceeded_limit(problem, found) is None:
            found_ns = simulate(problem, found).objective_ns(problem.objective)
            if found_ns < best_ns:
                best, best_ns = found, found_ns
        status = status.of_schedule(round(info.objective_function_value) * grid.tick_ns, best_ns)
    log = (
        f"solver HiGHS {highs.version()}, PuLP {pulp.__version__}",
        f"parameters {' '.join(f'{name}: {value}' for name, value in options.items())}",
        _digest(highs, variables),
        f"status {status}, best bound {bound_ns} ns",
    )
    work = checks / CHECKS_PER_UNIT
    return Solved(
        schedule=best, objective_ns=best_ns, lower_bound_ns=bound_ns, status=status, log=log, work=work, ended_by=ended_by
    )


def _libraries() -> tuple[ModuleType, ModuleType]:
    """PuLP and HiGHS. PuLP hides why its HiGHS is missing, so that HiGHS is asked for first."""
    try:
        import highspy
        import pulp
    except ImportError as error:
        raise Unsupported(f"method milp needs PuLP and HiGHS, and loading {error.name} failed ({error}); {REMEDY}") from error
    if not pulp.HiGHS(msg=False).available():
        raise Unsupported(f"method milp needs HiGHS, which PuLP {pulp.__version__} could not load when it was imported; {REMEDY}")
    return pulp, highspy


def _loaded(pulp: ModuleType, variables: MilpVariables) -> Any:
    """HiGHS with the model in it; PuLP leaves the number of each column in its variable's `index`."""
    pulp_solver = pulp.HiGHS(msg=False)
    pulp_solver.createAndConfigureSolver(variables.model)
    pulp_solver.buildSolverModel(variables.model)
    return variables.model.solverModel


def _options(limits: Limits, slack: float) -> dict[str, float | int]:
    """The optimum is an integer: whatever is less than a tick better than the best known solution is none."""
    options: dict[str, float | int] = {
        "random_seed": limits.seed,
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": max(0.0, 1 - 2 * slack),
        "mip_feasibility_tolerance": TOLERANCE,
        "primal_feasibility_tolerance": TOLERANCE,
        "dual_feasibility_tolerance": TOLERANCE,
    }
    if limits.deterministic is None and limits.time_s is not None:
        options["time_limit"] = limits.time_s
    return options


def _status(highspy: ModuleType, highs: Any) -> SolverStatus:
    """How HiGHS ended."""
    outcome, statuses = highs.getModelStatus(), highspy.HighsModelStatus
    if outcome == statuses.kOptimal:
        return SolverStatus.OPTIMAL
    if outcome == statuses.kInfeasible:
        return SolverStatus.INFEASIBLE
    has_solution = highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return SolverStatus.FEASIBLE if has_solution else SolverStatus.UNKNOWN


def _digest(highs: Any, variables: MilpVariables) -> str:
    """The model's size and digest: whoever builds the same model can check that it was this one."""
    lp = highs.getLp()
    columns = [(v.name, low, up) for v, low, up in zip(variables.model.variables(), lp.col_lower_, lp.col_upper_, strict=True)]
    rows = [list(lp.row_lower_), list(lp.row_upper_)]
    matrix = [list(part) for part in (lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_)]
    digest = hashlib.sha256(repr((columns, rows, matrix)).encode()).hexdigest()
    binaries = len(variables.order) + len(variables.fused)
    return f"model {lp.num_col_} variables, {binaries} of them binary, {lp.num_row_} constraints, sha256 {digest}"

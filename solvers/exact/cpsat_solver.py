"""How CP-SAT is run: its settings, when it ends, and what a certificate says of it; the one place that sets its parameters."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from schedc.errors import Defect
from schedc.solvers.common.base import SolverStatus
from schedc.solvers.common.interruption import wait_for

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedc.solvers.common.base import Limits

LARGE = 1 << 27
"""With values above this the presolve's search for rows within rows is left out: it adds coefficients of Booleans in 32 bits, and
what it proves where that overflows is false (google/or-tools, issue 5293, of ortools 9.15)."""
MOST_AREA = 1 << 29
"""Where a resource's capacity times the horizon is more than this, the LP adds no cuts: rows of those for scheduling have such
areas as coefficients of times, and squares of them; near 64 bits, from 0.94 × 2^31 on, ortools 9.15 ends, or a bound is false."""
NEIGHBOURHOOD, NEIGHBOURHOODS = 0.1, 50
"""A neighbourhood gets the first at most, CP-SAT's own limit, and of a limit of work one in the second at most: in odd nanoseconds
its search may come down one by one, of which CP-SAT counts a hundredth."""
CONFLICTS, LEAST_WORK = 20_000, 1e-3
"""Per unit of work one worker has at most this many conflicts: in odd nanoseconds it may raise a start one tick at a time,
which CP-SAT hardly counts. And no question counts as less than the second."""
SOLVER = f"solver CP-SAT, ortools {version('ortools')}"


def run(
    solver: cp_model.CpSolver, model: cp_model.CpModel, listener: cp_model.CpSolverSolutionCallback | None = None
) -> tuple[SolverStatus, BaseException | None]:
    """Solve in a thread of its own, so that an interruption is noticed at once; the status, and the interruption that ended it.

    CP-SAT's own way with Ctrl-C leaves the default handler behind, and would kill the process the next time.

    Raises:
        Defect: the model is invalid.
    """
    from ortools.sat.python import cp_model

    solver.parameters.catch_sigint_signal = False
    horizon = max((max(variable.domain) for variable in model.proto.variables), default=0)  # its domain[-1] is 0, always
    capacity = max((each.cumulative.capacity.offset for each in model.proto.constraints if each.has_cumulative()), default=1)
    if max(horizon, capacity) > LARGE:  # demands may become coefficients, too: of the Booleans that say whether a block is fused
        solver.parameters.presolve_inclusion_work_limit = 0
    if capacity * horizon > MOST_AREA:
        solver.parameters.cut_level = 0
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(solver.solve, model, listener)
        ended_by = wait_for([job], solver.stop_search)
    status = job.result()
    if status == cp_model.MODEL_INVALID:
        raise Defect(f"CP-SAT says that the model is invalid: {model.validate()}")
    return SolverStatus(solver.status_name(status)), ended_by


def solver_of(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT with these limits, workers and seed."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers, parameters.relative_gap_limit = limits.workers, limits.gap
    parameters.random_seed = limits.seed % (1 << 31)
    if limits.deterministic is not None:
        parameters.max_deterministic_time = limits.deterministic
        parameters.interleave_search = True  # the workers take turns in a fixed order
        parameters.lns_initial_deterministic_limit = min(NEIGHBOURHOOD, limits.deterministic / NEIGHBOURHOODS)
    elif limits.time_s is not None:
        parameters.max_time_in_seconds = limits.time_s
    return solver


def one_worker(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT with one search; the new propagation of linear rows (ortools 9.15) moves times on one by one, and counts no work."""
    solver = solver_of(replace(limits, workers=1))
    solver.parameters.interleave_search = solver.parameters.new_linear_propagation = False
    if limits.deterministic is not None:
        solver.parameters.max_number_of_conflicts = max(1, int(CONFLICTS * limits.deterministic))
    return solver


def work_of(solver: cp_model.CpSolver) -> float:
    """What it spent, in the units of a deterministic limit."""
    of_conflicts = solver.num_conflicts / CONFLICTS if solver.parameters.num_workers == 1 else 0.0
    return max(solver.response_proto.deterministic_time, of_conflicts, LEAST_WORK)


def for_narrow(limits: Limits, work: float, *, proves: bool) -> cp_model.CpSolver:
    """For narrow windows, where the order of two ops follows from the others; no LP, and no more than this work.

    Unless it `proves`, with strong propagation, which finds more; but where blocks take no time, ortools 9.15 then refutes what is
    possible.
    """
    solver = one_worker(replace(limits, deterministic=min(work, limits.deterministic or work)))
    if limits.clock_s is not None:
        solver.parameters.max_time_in_seconds = limits.clock_s
    solver.parameters.linearization_level, solver.parameters.use_strong_propagation_in_disjunctive = 0, not proves
    return solver


def asked_of(solver: cp_model.CpSolver) -> tuple[str, str]:
    """What a certificate says of who answered a question: the solver's version, its workers, its seed and its gap."""
    of = solver.parameters
    return SOLVER, f"{of.num_workers} workers, seed {of.random_seed}, gap {of.relative_gap_limit}"


def digest_of(model: cp_model.CpModel) -> str:
    """A model's size and digest: whoever builds the same model can check that it was this one."""
    digest = hashlib.sha256(str(model.proto).encode()).hexdigest()
    return f"model {len(model.proto.variables)} variables, {len(model.proto.constraints)} constraints, sha256 {digest}"

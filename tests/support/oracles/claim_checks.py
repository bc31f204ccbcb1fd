"""What the compiler claims of one problem, held against a model that shares no file with it, and attacked by every method.

Claims are the analytic bounds, the bounds and optima of CP-SAT, MILP and `refute`, and that memory cannot hold a microbatch. The
attack is every search from its own start and seed: a schedule below a claim that speaks of it refutes it, whoever made it.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from inputs.claim_problems import claim_problem
from inputs.tiny_problems import random_schedule

from oracles.findings import Finding
from oracles.fuzz_problems import too_little_memory
from oracles.unit_model import ALL, WEIGHTS, search
from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir.ops import Kind
from schedc.ir.plan import BoundName
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.method import fusing_saves_time
from schedc.solvers.driver.portfolio import candidate_names, solve
from schedc.solvers.driver.registry import constructive
from schedc.solvers.exact.cpsat import bound_cut_weights, may_cut_weights
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from inputs.odd_numbers import Odd

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule

SEARCHES = (
    "cpsat",
    "milp",
    "refute",
    "local{rounds=1,evaluations=60}",
    "polish{rounds=1,evaluations=60}",
)
WORK = 0.1
"""The deterministic limit of each search."""
MODELS = {ALL: ("parts", 0.12), WEIGHTS: ("whole F and B", 0.15), frozenset[Kind](): ("blocks", 0.2)}
"""By the kinds that the other model cuts, what it is a model of, and its limit in the same units: what is possible it finds."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """No schedule is shorter."""

    by: str
    bound_ns: int
    cut: frozenset[Kind]
    """Of those that cut these kinds of blocks, or none."""


def check_claims(seed: int, counts: Counter[str]) -> list[Finding]:
    """Everything that is false of what is claimed of the problem of this number; what is checked is counted."""
    small, large = claim_problem(seed)
    problem, random = large.problem if large else small, Random(f"claims {seed}")
    counts["problems"] += 1
    counts["in odd numbers"] += large is not None
    counts["several stages on a rank"] += len(problem.stages) > problem.ranks
    counts[f"minimize {problem.objective}"] += 1
    counts["fused backwards take less"] += fusing_saves_time(problem)
    findings: list[Finding] = []
    if too_little_memory(problem):
        counts["infeasible"] += 1
        answer = search(small, work=0.2)
        return [] if answer.found_ns is None else [Finding("infeasible: the model has a schedule", f"of {answer.found_ns} ns")]
    claims = [_Claim(f"bound {bound.name}", bound.value_ns, ALL) for bound in lower_bounds(problem)]
    found = list(_schedules(problem, random))
    best_bound_ns = max(claim.bound_ns for claim in claims)
    starts = [schedule for _, schedule, _ in found if not schedule.parts]
    for method in SEARCHES if starts else ():
        try:
            incumbent = solve(
                problem,
                SearchSettings(method=method, limits=Limits(deterministic=WORK, workers=1, seed=random.randrange(1000))),
                bound_ns=random.choice([0, best_bound_ns]),
                bound_by=BoundName.WORK,
                known=[(random.choice(starts), "start")],
            )
        except Unsupported:
            continue
        except Exception as error:  # broad on purpose: whatever comes out of a search here is what this looks for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            findings.append(Finding(f"{method}: {type(error).__name__} in {frame.name}", str(error)))
            continue
        findings += [Finding(f"{method}: failed", str(failure)) for failure in incumbent.failures]
        assert incumbent.schedule is not None
        found.append((method, incumbent.schedule, incumbent.objective_ns))
        if incumbent.bound_by.is_solvers:
            cut = WEIGHTS if incumbent.bound_by is BoundName.CPSAT_CUT else frozenset[Kind]()
            claims.append(_Claim(method, incumbent.bound_ns, cut))
            counts[f"proven optimal by {method}"] += incumbent.bound_ns == incumbent.objective_ns
    if starts and may_cut_weights(problem):
        known = min(found, key=lambda each: each[2])[1]
        solved = bound_cut_weights(problem, known, limits=Limits(deterministic=WORK, workers=1, seed=random.randrange(1000)))
        claims.append(_Claim("cpsat with W cut", solved.lower_bound_ns, WEIGHTS))
        counts["proven optimal by cpsat with W cut"] += solved.lower_bound_ns == solved.objective_ns
    for claim in claims:
        for by, schedule, objective_ns in found:
            if objective_ns < claim.bound_ns and claim.cut.issuperset(parts.kind for parts in schedule.parts):
                message = f"{claim.bound_ns} ns, but {by} takes {objective_ns} ns"
                findings.append(Finding(f"{claim.by}: too high", message))
    findings += _against_model(problem, small, large, claims, counts)
    return findings


def _schedules(problem: Problem, random: Random) -> Iterator[tuple[str, Schedule, int]]:
    """The valid ones of the constructive methods and a few random ones, with what made them and their objectives."""
    made: list[tuple[str, Schedule | None]] = []
    for method in (*candidate_names(problem), "rule-table"):
        try:
            made.append((method, constructive(method)(problem)))
        except Unsupported:
            continue
    made += [("random", random_schedule(random, problem)) for _ in range(3)]
    for by, schedule in made:
        if schedule is not None and not verify_schedule(problem, schedule):
            yield by, schedule, simulate(problem, schedule).objective_ns(problem.objective)


def _against_model(
    problem: Problem, small: Problem, large: Odd | None, claims: list[_Claim], counts: Counter[str]
) -> Iterator[Finding]:
    """Whether the other model has a schedule below the highest claim of each kind: all in parts of 1 ns, W in such parts, none.

    It cuts blocks of the small problem alone, whose optimum says within what that of the odd one is.
    """
    unit_ns, slack_ns = (large.unit_ns, large.slack_ns) if large else (1, 0)
    settled_ns = 0
    for cut, (what, work) in MODELS.items():
        claim = max((claim for claim in claims if claim.cut >= cut), key=lambda claim: claim.bound_ns)
        below_ns = -(-(claim.bound_ns - slack_ns) // unit_ns) if cut else claim.bound_ns
        if claim.bound_ns <= settled_ns or below_ns < 1:
            continue
        answer = search(small if cut else problem, below_ns=below_ns, cut=cut, work=work)
        is_settled = answer.found_ns is not None or answer.least_ns is None
        counts[f"model of {what}: {'settled' if is_settled else 'out of work'}"] += 1
        settled_ns = claim.bound_ns
        if answer.found_ns is not None:
            found = f"{answer.found_ns} × {unit_ns}" if cut else f"{answer.found_ns}"
            yield Finding(f"{claim.by}: above the optimum", f"{claim.bound_ns} ns, but {found} ns is possible")

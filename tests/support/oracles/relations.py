"""Relations that hold between the answers to two jobs: freer is never worse, and other names and units change nothing.

`random_relation` draws a problem and changes it in one way. A *freer* problem admits every schedule of the first, none of which
takes longer in it: its answer is no worse (but for what a search may miss), its bounds no higher. The *same* problem under other
names or in other units has the same bounds and answers. What answers is `auto`, with work counted and not seconds. Of *more asked*,
more methods or more work on the same problem, the answer is no worse. No bound of one, a solver's neither, refutes the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from inputs.claim_problems import drawn_problem
from inputs.layout_relations import MORE_CHOICE, OpenJob, random_open_job
from inputs.odd_numbers import odd

from oracles.findings import Finding
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.compile.driver import OpenLayouts, check_feasible, compile_problem, compile_question
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir.costs import DURATIONS
from schedc.ir.plan import Scope
from schedc.ir.problem import Objective
from schedc.solvers.common.base import Limits, SearchSettings

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from schedc.ir.problem import Problem, Stage
    from schedc.solvers.common.incumbent import Failure

MISSED = 0.01
"""The share of an answer that a search may miss."""
WORK = 0.5
"""The deterministic limit of an answer."""
SETTLED = 1e-5
"""An answer this close to its bound is not sought further: in odd nanoseconds CP-SAT would close the rest one by one."""
AGAIN = 8
"""An answer that is worse is asked for again with this many times the work."""
LEAST_OPS, MOST_OPS, MOST_ODD_OPS = 24, 60, 40
"""In odd numbers fewer: CP-SAT's bounds may come closer one by one there, of which it counts a hundredth as work."""
METHODS = ("greedy", "1f1b", "zb-h1", "interleaved", "rule-table", "spread", "local", "polish", "cpsat", "milp")


@dataclass(frozen=True, slots=True)
class Relation:
    """Two problems, and what the second is to the first."""

    name: str
    first: Problem | OpenJob
    second: Problem | OpenJob
    factor: int | None = None
    """Where both are the same, the second's times are this many times the first's; None: the second is freer, or more is asked."""
    first_method: str = "auto"
    first_share: float = 1.0
    """Of the work of an answer, where the second may have more."""


def random_relation(seed: int) -> Relation:
    """The relation of this number; every other one in odd nanoseconds of seconds and odd bytes of GiB."""
    random = Random(f"relation {seed}")
    while True:
        if random.random() < 0.1:
            name, widen = random.choice([*MORE_CHOICE.items()])
            narrow, wide = widen(random, random_open_job(random))
            if narrow != wide:
                return Relation(name, narrow, wide)
            continue
        most_ops = MOST_ODD_OPS if seed % 2 else MOST_OPS
        problem = drawn_problem(random, least_ops=LEAST_OPS, most_ops=most_ops, most_units=MOST_OPS * 6)
        if seed % 2:
            problem = odd(problem, random).problem
        name = random.choice([*FREER, *SAME, *MORE_ASKED])
        if name == "more methods":
            return Relation(name, problem, problem, first_method=random.choice(METHODS))
        if name == "a larger limit":
            return Relation(name, problem, problem, first_share=random.choice([0.1, 0.3]))
        first, second = FREER[name](random, problem) if name in FREER else (problem, SAME[name](random, problem))
        if second != first:
            return Relation(name, first, second, None if name in FREER else TIMES if name == "times scaled" else 1)


def check_relation(seed: int, counts: Counter[str]) -> list[Finding]:
    """What does not hold of the relation of this number; what is checked is counted."""
    relation = random_relation(seed)
    counts["relations"] += 1
    counts[f"relation: {relation.name}"] += 1
    findings: list[Finding] = []

    def fail(what: str, message: str) -> None:
        findings.append(Finding(f"{relation.name}: {what}", message))

    is_freer, factor = relation.factor is None, relation.factor or 1
    first = _answer(relation.first, relation.first_share * WORK, relation.first_method)
    second = _answer(relation.second, WORK)
    if second is None and (first is not None or not is_freer):
        fail("infeasible", "the second alone")
    if first is None or second is None:
        counts["infeasible"] += 1
        return findings
    for each in (first, second):
        findings += [Finding(f"{failure.method}: {failure.error} in {failure.place}", str(failure)) for failure in each.failures]
    bounds = f"{factor} × {first.bound_ns} ns ({first.bound_by}), {second.bound_ns} ns ({second.bound_by})"
    # Rounded up to whole times of the first: there a bound may be rounded up to a nanosecond, and here to a thousandth of one.
    if second.bound_ns > factor * first.bound_ns or (not is_freer and -(-second.bound_ns // factor) != first.bound_ns):
        fail("bounds", bounds)
    if first.objective_ns is None:
        counts["no plan of the first"] += 1
        return findings
    if second.objective_ns is None:
        fail("no plan", f"though there was one of {first.objective_ns} ns")
        return findings
    counts["answers compared"] += 1
    refuted_ns = second.bound_ns if _may_lengthen_span(relation) else second.refutes_ns(first)
    if refuted_ns > factor * first.objective_ns:
        fail("a bound above a known schedule", f"{bounds}, {refuted_ns} ns, {first.objective_ns} ns")
    answers = f"{factor} × {first.objective_ns} ns ({first.found_by}), then {second.objective_ns} ns ({second.found_by})"
    if _is_worse(relation.second, second.objective_ns, factor * first.objective_ns, counts):
        fail("worse", answers)
    if (not is_freer or relation.name in MORE_ASKED) and factor * first.refutes_ns(second) > second.objective_ns:
        fail("a bound above a known schedule", f"{bounds}, {factor} × {first.refutes_ns(second)} ns, {second.objective_ns} ns")
    if not is_freer and _is_worse(relation.first, first.objective_ns, second.objective_ns / factor, counts):
        fail("better", answers)
    return findings


def _may_lengthen_span(relation: Relation) -> bool:
    """Whether a rank may begin earlier in the second, and end as before: a schedule is then longer in its span."""
    is_span = not isinstance(relation.first, OpenJob) and relation.first.objective is Objective.STAGE_SPAN
    return is_span and relation.name in ("a faster link", "a faster stage", "no shared trunk", "no collectives")


def _is_worse(job: Problem | OpenJob, objective_ns: int, other_ns: float, counts: Counter[str]) -> bool:
    """Whether it is by more than a search may miss, and still is with more work."""
    if objective_ns <= (1 + MISSED) * other_ns:
        return False
    counts["answers asked for again"] += 1
    again = _answer(job, AGAIN * WORK)
    return again is None or again.objective_ns is None or again.objective_ns > (1 + MISSED) * other_ns


@dataclass(frozen=True, slots=True)
class _Answer:
    bound_ns: int
    """The analytic one."""
    bound_by: str
    objective_ns: int | None
    found_by: str
    failures: tuple[Failure, ...]
    proven_ns: int = 0
    """The certificate's bound, where it is one over all that was asked."""
    of_whole: bool = False
    """Whether that speaks of schedules of whole blocks alone."""
    is_whole: bool = True
    """Whether the plan cuts no block."""

    def refutes_ns(self, other: _Answer) -> int:
        """No plan like the other's is shorter."""
        return self.bound_ns if self.of_whole and not other.is_whole else max(self.bound_ns, self.proven_ns)


def _answer(job: Problem | OpenJob, work: float, method: str = "auto") -> _Answer | None:
    """What the method makes of it; None if memory holds no microbatch."""
    limits = Limits(deterministic=work, workers=1, gap=SETTLED)
    try:
        if isinstance(job, OpenJob):
            bound = layout_bound(job.workload, job.open_layout)
            made = compile_question(OpenLayouts(job.workload, job.open_layout), SearchSettings(method=method, limits=limits))
        else:
            check_feasible(job)
            bound = best_bound(job)
            made = compile_problem(job, SearchSettings(method=method, limits=limits))
    except Infeasible:
        return None
    except (NoPlanFound, Unsupported):
        return _Answer(bound.value_ns, bound.name, None, "", ())
    certificate = made.plan.certificate
    return _Answer(
        bound_ns=bound.value_ns,
        bound_by=bound.name,
        objective_ns=certificate.objective_ns,
        found_by=made.plan.made_by.method,
        failures=made.failures,
        proven_ns=0 if isinstance(job, OpenJob) and certificate.scope is Scope.SCHEDULE else certificate.lower_bound_ns,
        of_whole=certificate.bound.is_solvers,
        is_whole=not made.plan.parts,
    )


def _more_memory(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    limits = list(problem.memory_limit_bytes)
    for rank in random.choice([range(problem.ranks), [random.randrange(problem.ranks)]]):
        limit = limits[rank]
        if limit is not None:
            limits[rank] = random.choice([limit + 1, limit * 5 // 4, limit * 2, None])
    return problem, replace(problem, memory_limit_bytes=tuple(limits))


def _smaller_activation(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    def smaller(stage: Stage) -> Stage:
        after = stage.activation_after_input_bytes
        if random.random() < 0.5:
            return replace(stage, activation_after_input_bytes=after // 2)
        return replace(stage, activation_bytes=max(after, stage.activation_bytes * 3 // 4))

    return problem, _with_stages(problem, smaller)


def _faster_link(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    links = list(problem.links)
    for index in random.sample(range(len(links)), random.randint(0, len(links))):
        link, share = links[index], random.choice([0, 0.5, 0.99])
        if random.random() < 0.5:
            links[index] = replace(link, latency_ns=int(link.latency_ns * share))
        else:
            links[index] = replace(link, transfer_ns=int((link.transfer_ns or 0) * share))
    return problem, replace(problem, links=tuple(links))


def _faster_stage(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    chosen, share = random.randrange(len(problem.stages)), random.choice([0.5, 0.9, 0.99])
    names = random.sample(list(DURATIONS.values()), random.randint(1, 4))

    def faster(stage: Stage) -> Stage:
        if stage is not problem.stages[chosen]:
            return stage
        times: dict[str, Any] = {name: tuple(max(1, int(each * share)) for each in getattr(stage, name)) for name in names}
        return replace(stage, **times)

    return problem, _with_stages(problem, faster)


def _may_split(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    return replace(problem, split_backward=False), replace(problem, split_backward=True)


def _any_order(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    return replace(problem, in_order=True), replace(problem, in_order=False)


def _may_cut(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    return replace(problem, cut_blocks=False), replace(problem, cut_blocks=True)


def _microbatch_less(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    count = problem.microbatches - 1

    def less(stage: Stage) -> Stage:
        times: dict[str, Any] = {name: getattr(stage, name) for name in DURATIONS.values()}
        return replace(stage, **{name: each[:count] if len(each) > 1 else each for name, each in times.items()})

    made = replace(_with_stages(problem, less), microbatches=count, path_of=problem.path_of[:count])
    return problem, made if len(set(made.path_of)) == len(made.paths) else problem


def _links_apart(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    """Links of one trunk serve in another order than links of their own would; without collectives there is only more room."""
    links = tuple(replace(link, trunk="trunk") for link in problem.links)
    apart = tuple(replace(link, trunk=None) for link in problem.links)
    return replace(problem, links=links, data_parallel=None), replace(problem, links=apart, data_parallel=None)


def _no_collectives(random: Random, problem: Problem) -> tuple[Problem, Problem]:
    return problem, replace(problem, data_parallel=None)


TIMES, BYTES = 1000, 2**20


def _times_scaled(random: Random, problem: Problem) -> Problem:
    def scaled(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(TIMES * each for each in values)

    links = tuple(
        replace(link, latency_ns=TIMES * link.latency_ns, transfer_ns=TIMES * (link.transfer_ns or 0)) for link in problem.links
    )
    parallel = problem.data_parallel
    if parallel is not None:
        scatter, gather = scaled(parallel.reduce_scatter_ns), scaled(parallel.all_gather_ns)
        parallel = replace(parallel, reduce_scatter_ns=scatter, all_gather_ns=gather)

    def longer(stage: Stage) -> Stage:
        times: dict[str, Any] = {name: scaled(getattr(stage, name)) for name in DURATIONS.values()}
        return replace(stage, **times)

    return replace(_with_stages(problem, longer), links=links, data_parallel=parallel)


def _bytes_scaled(random: Random, problem: Problem) -> Problem:
    def scaled(stage: Stage) -> Stage:
        whole, after = BYTES * stage.activation_bytes, BYTES * stage.activation_after_input_bytes
        return replace(stage, activation_bytes=whole, activation_after_input_bytes=after)

    limits = tuple(None if limit is None else BYTES * limit for limit in problem.memory_limit_bytes)
    return replace(_with_stages(problem, scaled), memory_limit_bytes=limits)


def _ranks_renamed(random: Random, problem: Problem) -> Problem:
    """Only without trunks, on which the lower rank goes first."""
    named = random.sample(range(problem.ranks), problem.ranks)
    links = tuple(
        replace(link, source=named[link.source], destination=named[link.destination], trunk=None) for link in problem.links
    )
    limits = tuple(problem.memory_limit_bytes[named.index(rank)] for rank in range(problem.ranks))
    made = _with_stages(problem, lambda stage: replace(stage, rank=named[stage.rank]))
    changed = replace(made, links=links, memory_limit_bytes=limits)
    return problem if any(link.trunk for link in problem.links) else changed


def _with_stages(problem: Problem, change: Callable[[Stage], Stage]) -> Problem:
    return replace(problem, stages=tuple(map(change, problem.stages)))


MORE_ASKED = ("more methods", "a larger limit")
FREER: dict[str, Callable[[Random, Problem], tuple[Problem, Problem]]] = {
    "more memory": _more_memory,
    "smaller activations": _smaller_activation,
    "a faster link": _faster_link,
    "a faster stage": _faster_stage,
    "backwards may be split": _may_split,
    "microbatches in any order": _any_order,
    "blocks may be cut": _may_cut,
    "a microbatch less": _microbatch_less,
    "no shared trunk": _links_apart,
    "no collectives": _no_collectives,
}
SAME: dict[str, Callable[[Random, Problem], Problem]] = {
    "times scaled": _times_scaled,
    "bytes scaled": _bytes_scaled,
    "ranks renamed": _ranks_renamed,
}

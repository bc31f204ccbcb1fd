"""The bound over all cuts of microbatches into slices, held against brute force over all cuts and all schedules of each.

Where the schedules of a cut are too many, its optimum is not known; the bound must be no more than those that are.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random
from typing import TYPE_CHECKING

from oracles.brute_force import SearchTooLarge, optimum
from oracles.findings import Finding
from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.ir import Device, Layer, Layout, MessageCost, Network, Objective, OpenLayout, OpenSlices, Placement, Workload
from schedc.lower.problem import problem_of
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.cuts import CutSearch
from schedc.verify.layout import verify_open_layout
from schedc.verify.problem import verify_problem
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

MOST_STATES, MOST_OPS = 8_000, 36
LOOKS = 60
"""Changes that the search tries."""


def small_cuts(number: int) -> tuple[Workload, OpenLayout, OpenSlices]:
    """2 or 3 ranks with a stage each, sometimes two; 1 or 2 microbatches of 2 to 6 units of tokens; up to 3 slices."""
    random = Random(number)
    ranks = random.choice((2, 2, 3))
    stages = [*range(ranks), *((random.randrange(ranks),) if random.random() < 0.25 else ())]
    unit, split = 1000, random.random() < 0.6
    alike = random.random() < 0.4
    fixed = random.choice((Fraction(0), Fraction(1, 20), Fraction(1, 5)))

    def layer(forward: int, back: int, weight: int) -> Layer:
        fused = back + weight if random.random() < 0.6 else random.randint(max(back, weight), back + weight)
        activation = random.randint(1, 40)
        return Layer(
            forward_ns=(unit * forward,),
            backward_input_ns=(unit * back,),
            backward_weight_ns=(unit * weight,),
            backward_ns=(unit * fused,),
            activation_bytes=activation,
            activation_after_input_bytes=random.randint(0, activation),
            message_bytes=random.randint(1, 60),
            gradient_message_bytes=random.randint(1, 60),
            state_gradient_bytes=random.randint(0, 8),
            fixed=fixed,
            quadratic=(Fraction(random.randint(0, 8), 10), Fraction(random.randint(0, 8), 10)),
        )

    same = layer(random.randint(4, 30), random.randint(4, 30), random.randint(1, 20))
    layers = [same if alike else layer(random.randint(1, 30), random.randint(1, 30), random.randint(1, 20)) for _ in stages]
    tokens, granularity = random.randint(2, 6), random.choice((1, 1, 128))
    most = random.randint(2, min(3, tokens))
    slices = OpenSlices(tokens=tokens * granularity, granularity=granularity, least=random.choice((1, 1, most)), most=most)
    speeds = [random.choice((Fraction(1), Fraction(1), Fraction(7, 10))) for _ in range(ranks)]
    cost = MessageCost(latency_ns=random.choice((0, 700)), bytes_per_second=random.choice((None, 10**7, 10**8)))
    whole = sum(each.activation_bytes + each.state_gradient_bytes for each in layers)
    limit = random.choice((None, None, whole + random.randint(0, whole)))
    workload = Workload(
        name=f"cuts {number}",
        microbatches=random.choice((1, 2)),
        layers=tuple(layers),
        devices=tuple(Device(speed=speed, limit_bytes=limit) for speed in speeds),
        network=Network(site_of_rank=(0,) * ranks, within=cost),
        split_backward=split,
        in_order=random.random() < 0.5,
        objective=Objective.STAGE_SPAN if number % 7 == 6 else Objective.MAKESPAN,
    )
    count = len(stages)
    placement = Placement(rank_of_stage=tuple(stages), paths=(tuple(range(count)),))
    open_layout = OpenLayout(
        placement=placement,
        layers_of_stage=tuple((at, at + 1) for at in range(count)),
        recompute=tuple(random.random() < 0.2 for _ in stages) if random.random() < 0.3 else (False,),
        slices=slices,
    )
    return workload, open_layout, slices


def cuts_of(slices: OpenSlices) -> Iterator[tuple[int, ...]]:
    """All cuts that are open."""
    most = -(-slices.tokens // slices.granularity)
    for count in range(slices.least, slices.most + 1):
        for inner in combinations(range(1, most), count - 1):
            ends = [0, *(each * slices.granularity for each in inner), slices.tokens]
            yield tuple(end - begin for begin, end in pairwise(ends)) if inner else ()


def check_cuts(number: int, counts: Counter[str]) -> list[Finding]:
    """Everything that is false of what is claimed of the problem of this number; what is checked is counted."""
    workload, open_layout, slices = small_cuts(number)
    assert not verify_workload(workload)
    assert open_layout.placement is not None and open_layout.layers_of_stage is not None
    base = Layout(
        rank_of_stage=open_layout.placement.rank_of_stage,
        paths=open_layout.placement.paths,
        layers_of_stage=open_layout.layers_of_stage,
        recomputed=frozenset(at for at in range(len(open_layout.layers_of_stage)) if open_layout.recomputes(at)),
    )
    optima: dict[tuple[int, ...], int] = {}
    findings: list[Finding] = []
    too_large = 0
    for cut in cuts_of(slices):
        layout = replace(base, slices=cut)
        assert not verify_open_layout(workload, open_layout, layout)
        problem = problem_of(workload, layout)
        assert not verify_problem(problem)
        counts["cuts"] += 1
        if problem.num_ops > MOST_OPS:
            too_large += 1
            continue
        try:
            least_ns = optimum(problem, most_states=MOST_STATES)
        except SearchTooLarge:
            too_large += 1
            continue
        if least_ns is not None:
            optima[cut] = least_ns
            own_ns = best_bound(problem).value_ns
            counts["cuts whose own bound is the optimum"] += own_ns == least_ns
            if own_ns > least_ns:
                findings.append(Finding("bound of a cut: too high", f"{own_ns} ns, but {least_ns} ns is possible, cut {cut}"))
    counts["cuts too large for brute force"] += too_large
    if not optima:
        counts["problems without a cut that could be solved"] += 1
        return findings
    counts["problems compared"] += 1
    best = min(optima, key=optima.__getitem__)
    bound_ns = layout_bound(workload, open_layout).value_ns
    if bound_ns > optima[best]:
        findings.append(Finding("bound over cuts: too high", f"{bound_ns} ns, but {optima[best]} ns is possible, cut {best}"))
    if too_large:
        return findings
    counts["problems with all cuts solved"] += 1
    counts["  the best cut is whole"] += not best
    counts["  the bound is within 1 % of the optimum"] += bound_ns >= 0.99 * optima[best]
    counts["  the bound is within 5 % of the optimum"] += bound_ns >= 0.95 * optima[best]
    if workload.objective is Objective.MAKESPAN:
        search = CutSearch(workload, base, slices, seed=number)
        search.begin(lambda: 1.0)
        search.run(lambda: 1 - search.looks / LOOKS, lambda _: None)
        found = {cut: value for cut, value in search.known.items() if value < NEVER}
        wrong = [cut for cut, value in found.items() if cut not in optima or value < optima[cut]]
        if wrong:
            findings.append(
                Finding("search: better than possible", f"cut {wrong[0]}: {found[wrong[0]]} ns of {optima.get(wrong[0])}")
            )
        counts["  the search finds the best cut's makespan"] += bool(best) and min(found.values(), default=NEVER) == optima[best]
    return findings

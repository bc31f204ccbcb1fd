"""When sharded weights are gathered and released, and gradients reduced: the rules of a schedule's collectives, and what they hold.

Takes a Problem whose weights are sharded and a Schedule; `check_sharding` gives what is wrong with the collectives, and
`sharded_along` walks along one rank's queue. What is wrong holds nothing there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import Kind, Problem, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir import Collective, Op
    from schedc.verify.violation import Found


def check_sharding(problem: Problem, schedule: Schedule) -> Found:
    """Each op runs beside its stage's gathered weights, and each stage's gradients are reduced once, behind its last W or BW.

    A rank issues its collectives in the order of their places. Weights that are there are not gathered again, nor are any that no
    op needs.
    """
    if not problem.is_sharded:
        if any(schedule.collectives):
            yield "collectives", "found places of collectives, expected none, as weights are not sharded"
        return
    if len(schedule.collectives) != len(schedule.orders):
        yield "collectives", f"expected those of each of the {len(schedule.orders)} ranks, found {len(schedule.collectives)} lists"
        return
    for rank, (order, collectives) in enumerate(zip(schedule.orders, schedule.collectives, strict=True)):
        own, place = set(problem.stages_on(rank)), f"ranks[{rank}].collectives"
        issued, reduced = 0, set[int]()
        there: dict[int, int] = dict.fromkeys(own, 0)
        covered = [False] * len(order)
        last = {op.stage: at + 1 for at, op in enumerate(order) if op.kind in (Kind.W, Kind.BW)}
        for index, each in enumerate(collectives):
            at, problem_with = f"{place}[{index}]", ""
            if each.stage not in own or each.kind not in ("AG", "RS"):
                problem_with = f"expected AG or RS of one of the rank's stages {sorted(own)}"
            elif not 0 <= each.before <= each.until <= len(order):
                problem_with = f"expected places in the queue of {len(order)} ops, the first not behind the second"
            elif each.before < issued:
                problem_with = f"is issued behind one that is issued before op {issued}"
            elif each.kind == "AG" and each.before < there[each.stage]:
                problem_with = f"the weights are there until op {there[each.stage]}"
            elif each.kind == "AG" and not any(op.stage == each.stage for op in order[each.before : each.until]):
                problem_with = "no op needs it"
            elif each.kind == "RS" and (each.stage in reduced or each.before < last.get(each.stage, len(order))):
                problem_with = f"gradients are reduced once, not before op {last.get(each.stage)}, behind the stage's last W or BW"
            if problem_with:
                yield at, f"{each.token}: {problem_with}"
                continue
            behind = [of.token for of in collectives[index:] if each.kind == "AG" and of.kind == "RS" and of.until == each.before]
            if behind:  # the rank waits for that one with both in its memory
                yield at, f"{each.token}: expected behind {behind[0]}, whose room it has"
            issued = each.before
            if each.kind == "RS":
                reduced.add(each.stage)
                continue
            there[each.stage] = each.until
            for place_of_op in range(each.before, each.until):
                covered[place_of_op] |= order[place_of_op].stage == each.stage
        for index, (op, has_weights) in enumerate(zip(order, covered, strict=True)):
            if not has_weights and op.stage in own:
                yield f"ranks[{rank}].compute[{index}]", f"{problem.token(op)}: the weights of its stage are not gathered there"
        for stage in sorted(last.keys() - reduced):
            yield place, f"RS{stage} is missing"


def sharded_along(problem: Problem, order: tuple[Op, ...], collectives: tuple[Collective, ...]) -> Iterator[int]:
    """Per op of a rank's queue, what gathered weights and gradients that are not reduced take while it runs, in bytes."""
    parallel = problem.data_parallel
    assert parallel is not None
    gathered, unreduced = dict[int, int](), dict[int, int]()
    starting: dict[int, list[Collective]] = {}
    known = {op.stage for op in order} & set(range(len(parallel.gathered_bytes)))
    for each in (each for each in collectives if each.stage in known):
        starting.setdefault(each.before, []).append(each)
    reduced_by = {each.stage: each.until for each in collectives if each.kind == "RS"}
    for index, op in enumerate(order):
        gathered |= {each.stage: each.until for each in starting.get(index, ()) if each.kind == "AG"}
        if op.kind in (Kind.W, Kind.BW) and op.stage in known:
            unreduced.setdefault(op.stage, reduced_by.get(op.stage, len(order)))
        yield sum(parallel.gathered_bytes[stage] for stage, until in gathered.items() if index < until) + sum(
            parallel.gradient_bytes[stage] for stage, until in unreduced.items() if index < until
        )

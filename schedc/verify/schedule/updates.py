"""What must hold of a Schedule whose steps overlap. Takes a Problem with `updates` and its Schedule; gives every violation.

A run of steps has one `U` per stage and step, and what each mode says of the weights that ops read. A period is checked for being
one step, and then as a run (`run_of`), long enough that everything that happens in any run happens in it. Nothing is shared with
what makes runs of periods and counts versions for the compiler.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from schedc.ir import DURATIONS, MOST_OPS, WHOLE, Kind, Op, Problem, Schedule, Versions, token
from schedc.verify.violation import Checks, Found

if TYPE_CHECKING:
    from collections.abc import Iterator

PERIOD: Checks[[Problem, Schedule]] = Checks()
RUN: Checks[[Problem, Schedule]] = Checks()


def period_of_step(op: Op, microbatches: int) -> tuple[int, int]:
    """The step of an op of a period, and its microbatch counted within the step; of U the latter is 0."""
    return (op.microbatch, 0) if op.kind == Kind.U else divmod(op.microbatch, microbatches)


@PERIOD
def check_period_ops(problem: Problem, schedule: Schedule) -> Found:
    """A period has one order for each rank; its ops are whole, on the ranks of their stages, and number their steps from 0."""
    if len(schedule.orders) != problem.ranks:
        yield "ranks", f"expected one order for each of the {problem.ranks} ranks, found {len(schedule.orders)}"
    if schedule.parts:
        yield "parts[0]", "no block may be cut where steps overlap"
    steps = [0]
    for rank, order in enumerate(schedule.orders):
        for index, op in enumerate(order):
            place = _place(rank, index)
            if not 0 <= op.kind <= Kind.U or op.part != WHOLE or op.microbatch < 0:
                yield place, f"{op} is no whole op of a step that exists"
            elif not 0 <= op.stage < len(problem.stages):
                yield place, f"{token(op)}: the stages are 0 to {len(problem.stages) - 1}"
            elif problem.stages[op.stage].rank != rank:
                yield place, f"{token(op)} belongs on rank {problem.stages[op.stage].rank}, found on {rank}"
            else:
                steps.append(period_of_step(op, problem.microbatches)[0])
    ops = sum(map(len, schedule.orders))
    if (3 * max(steps) + 3) * ops > MOST_OPS:
        yield "ranks", f"a period reaches over {max(steps)} steps, too many to be checked with {ops} ops each"


@PERIOD
def check_period_coverage(problem: Problem, schedule: Schedule) -> Found:
    """Each block of one step, and the update of each stage, is in a period once, of whatever step; some op is of step 0."""
    found = Counter(
        (op.kind, op.stage, period_of_step(op, problem.microbatches)[1])
        for order in schedule.orders
        for op in order
        if op.part == WHOLE
    )
    expected = {(Kind.U, stage, 0) for stage in range(len(problem.stages))}
    for stage, microbatch in problem.blocks():
        fused = (Kind.BW, stage, microbatch) in found
        expected |= {(kind, stage, microbatch) for kind in ((Kind.F, Kind.BW) if fused else (Kind.F, Kind.B, Kind.W))}
    for kind, stage, microbatch in sorted(expected | set(found)):
        count = found[kind, stage, microbatch]
        if count != int((kind, stage, microbatch) in expected) and 0 <= stage < len(problem.stages):
            what = f"{Kind(kind).name} of stage {stage}" + ("" if kind == Kind.U else f" for microbatch {microbatch} of a step")
            wanted = "once" if (kind, stage, microbatch) in expected else "never"
            yield f"ranks[{problem.stages[stage].rank}].compute", f"{what} is there {count} times in a period, expected {wanted}"
    if all(period_of_step(op, problem.microbatches)[0] > 0 for order in schedule.orders for op in order):
        yield "ranks", "no op of the period is of step 0; steps are counted from the least"


def run_of(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """The run of a sound period that shows everything: with d the steps that the period reaches over, 3 d + 3 steps.

    Periods d to 3 d + 2 of it hold all ops. What is held at any moment follows from the ops of the d periods before, and the
    weights that these read from the updates of the d + 1 before them; so the last of them is as any period of a longer run.
    """
    updates, count = problem.updates, problem.microbatches
    assert updates is not None
    depth = max(period_of_step(op, count)[0] for order in schedule.orders for op in order)
    steps = 3 * depth + 3
    orders = []
    for order in schedule.orders:
        run: list[Op] = []
        for number in range(steps + depth):
            for op in order:
                step, within = period_of_step(op, count)
                step += number - depth
                if 0 <= step < steps:
                    run.append(Op(op.kind, op.stage, step if op.kind == Kind.U else step * count + within))
        orders.append(tuple(run))
    stages = []
    for stage in problem.stages:
        columns = {name: getattr(stage, name) for name in DURATIONS.values()}
        stages.append(replace(stage, **{name: values if len(values) == 1 else values * steps for name, values in columns.items()}))
    whole = replace(
        problem,
        stages=tuple(stages),
        microbatches=steps * count,
        path_of=problem.path_of * steps,
        updates=replace(updates, is_period=False),
    )
    return whole, Schedule(orders=tuple(orders))


@RUN
def check_updates(problem: Problem, schedule: Schedule) -> Found:
    """Each stage has one update for each step, in their order, each after all backwards of its step; else there are none."""
    updates = problem.updates
    steps = problem.microbatches // updates.microbatches if updates is not None else 0
    done: Counter[tuple[int, int]] = Counter()
    left: Counter[tuple[int, int]] = Counter()
    if updates is not None:
        for order in schedule.orders:
            for op in order:
                if op.kind in (Kind.W, Kind.BW):
                    left[op.stage, op.microbatch // updates.microbatches] += 1
    for rank, order in enumerate(schedule.orders):
        latest: dict[int, int] = {}
        for index, op in enumerate(order):
            place = _place(rank, index)
            if updates is not None and op.kind in (Kind.W, Kind.BW):
                left[op.stage, op.microbatch // updates.microbatches] -= 1
            if op.kind != Kind.U:
                continue
            if updates is None:
                yield place, f"{token(op)}: the problem's steps do not overlap, so its schedules have no updates"
                continue
            if not 0 <= op.microbatch < steps or op.part != WHOLE:
                yield place, f"{token(op)}: the steps are 0 to {steps - 1}, and an update is never cut"
                continue
            done[op.stage, op.microbatch] += 1
            if op.microbatch < latest.get(op.stage, -1):
                yield place, f"{token(op)} is after U{op.stage}.{latest[op.stage]}; a stage's updates are in the order of the steps"
            latest[op.stage] = max(op.microbatch, latest.get(op.stage, -1))
            if left[op.stage, op.microbatch] > 0:
                yield place, f"{token(op)} is before {left[op.stage, op.microbatch]} of its step's backwards"
    visited = {stage for path in problem.paths for stage in path} if updates is not None else set()
    for stage in sorted(visited):
        for step in range(steps):
            if done[stage, step] != 1:
                yield f"ranks[{problem.stages[stage].rank}].compute", f"U{stage}.{step} is there {done[stage, step]} times"


@RUN
def check_weights_read(problem: Problem, schedule: Schedule) -> Found:
    """The weights that an op should read exist when it runs, and under bounded versions no more updates than allowed lie between.

    Stash: what F reads is whatever is newest, so there is no rule. 2BW: step k reads what the update of step k - 2 made. Bounded:
    of a stage at most `most_delay` updates are between the F of a microbatch and its last backward.
    """
    updates = problem.updates
    if updates is None or updates.versions is Versions.STASH:
        return
    for rank, order in enumerate(schedule.orders):
        made: Counter[int] = Counter()
        before: dict[tuple[int, int], int] = {}
        for index, op in enumerate(order):
            if op.kind == Kind.U:
                made[op.stage] += 1
            elif updates.versions is Versions.TWO_BUFFERED:
                needed = op.microbatch // updates.microbatches - 2
                if op.kind == Kind.F and made[op.stage] <= needed:
                    yield _place(rank, index), f"{token(op)} is before U{op.stage}.{needed}, whose weights it reads"
            elif op.kind == Kind.F:
                before[op.stage, op.microbatch] = made[op.stage]
            elif updates.most_delay is not None:
                crossed = made[op.stage] - before.get((op.stage, op.microbatch), made[op.stage])
                if crossed > updates.most_delay:
                    message = f"{token(op)} is {crossed} updates after its F, expected at most {updates.most_delay}"
                    yield _place(rank, index), message


def delays_and_versions(problem: Problem, schedule: Schedule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Per stage of a run, its largest delay and the most versions of its weights that are there at once."""
    updates, stages = problem.updates, problem.stages
    assert updates is not None
    delays, versions = [0] * len(stages), [1] * len(stages)
    for order in schedule.orders:
        for stage in {op.stage for op in order}:
            alone = replace(problem, stages=tuple(replace(each, version_bytes=int(at == stage)) for at, each in enumerate(stages)))
            versions[stage] = 1 + max(version_bytes_along(alone, order))
            made = 0
            for op in order:
                if op.stage == stage and op.kind == Kind.U:
                    made += 1
                elif op.stage == stage and op.kind == Kind.F:
                    step = op.microbatch // updates.microbatches
                    behind = min(step, 1) if updates.versions is Versions.TWO_BUFFERED else step - made
                    delays[stage] = max(delays[stage], behind)
    return tuple(delays), tuple(versions)


def version_bytes_along(problem: Problem, order: tuple[Op, ...]) -> Iterator[int]:
    """Per op of a rank's order, what versions of its stages' weights take while it runs, beside one of each.

    A version is there from its update on. It goes when the next one is made, or the one after that under 2BW, but not before the
    last backward of the microbatches that stash it.
    """
    updates = problem.updates
    assert updates is not None
    change = [0] * (len(order) + 1)
    for stage in {op.stage for op in order}:
        size_bytes = problem.stages[stage].version_bytes
        made = [0, *(index for index, op in enumerate(order) if op.kind == Kind.U and op.stage == stage)]
        stays = 2 if updates.versions is Versions.TWO_BUFFERED else 1
        gone = [made[number + stays] if number + stays < len(made) else len(order) for number in range(len(made))]
        if updates.versions is Versions.STASH:
            reads: dict[int, int] = {}
            newest = 0
            for index, op in enumerate(order):
                if op.stage != stage:
                    continue
                if op.kind == Kind.U:
                    newest += 1
                elif op.kind == Kind.F:
                    reads.setdefault(op.microbatch, newest)
                elif op.microbatch in reads:
                    gone[reads[op.microbatch]] = max(gone[reads[op.microbatch]], index + 1)
        for first, last in zip(made, gone, strict=True):
            change[first] += size_bytes
            change[last] -= size_bytes
        change[0] -= size_bytes
    yield from list(accumulate(change))[:-1]


def _place(rank: int, index: int) -> str:
    return f"ranks[{rank}].compute[{index}]"

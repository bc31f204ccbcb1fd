"""The linter of PyTorch's schedule CSVs: every rule, in an order in which each finds what it relies on.

Takes the rows of a CSV and the job that it is for; gives every finding, none if torch 2.13's `_PipelineScheduleRuntime` runs it as
the job says. It knows nothing of how schedc writes such a CSV. What a sound CSV computes, `schedule_of_rows` gives as a Schedule.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.formats.torch_csv.lint import rules
from schedc.formats.torch_csv.lint.actions import COMPUTE, Action, Finding, Lists, check_cells, check_rows, read_actions
from schedc.formats.torch_csv.lint.deadlock import check_compute_deadlock, check_deadlock
from schedc.ir import Collective, Kind, Op, Problem, Schedule, with_whole_weights
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_KINDS = {"F": Kind.F, "I": Kind.B, "W": Kind.W, "B": Kind.BW}
_COMPUTE = (
    rules.check_duplicates,
    rules.check_backward_kinds,
    rules.check_coverage,
    rules.check_compute_order,
    rules.check_loss_order,
)
_SHIFT = ("duplicate", "missing")
"""Findings that put all the pair's later messages out of step: the orders are not compared then."""
_PLACE = re.compile(r"ranks\[(\d+)\]\.compute\[(\d+)\]")


def verify_torch_csv(rows: Sequence[Sequence[str]], problem: Problem, layout: str) -> tuple[Finding, ...]:
    """Every rule that the CSV breaks, by row and cell; empty if it is sound.

    The problem is the job's: against its ranks, stages, microbatches and placement it is checked. `layout` is what torch calls
    `format`.

    Raises:
        Unsupported: torch cannot run this job.
    """
    check_job(problem)
    findings = [*check_rows(rows, problem), *check_cells(rows, problem, layout)]
    filled = [row for row in rows if row]
    if len(filled) == problem.ranks:
        findings += _of_actions(filled, problem, layout)
    if not findings:
        findings += _of_schedule(filled, timed_as(problem, layout))
    return tuple(sorted(findings, key=lambda one: (one.row or 0, one.cell or 0)))


def check_job(problem: Problem) -> None:
    """Refuse a job whose stages torch cannot have.

    Raises:
        Unsupported: there are two paths, or one that is not stage 0, 1, 2, …; or steps overlap.
    """
    if problem.updates is not None:
        raise Unsupported(f"{problem.name}: torch cannot run this job: its steps overlap")
    if len(problem.paths) > 1 or problem.paths[0] != tuple(range(len(problem.stages))):
        raise Unsupported(f"{problem.name}: torch cannot run this job: its stages are not one chain from 0 on")


def timed_as(problem: Problem, layout: str) -> Problem:
    """The problem that the CSV's schedule is of: where torch places gathers itself, weights are taken as whole."""
    return with_whole_weights(problem) if layout == "compute_only" else problem


def schedule_of_rows(rows: Sequence[Sequence[str]], problem: Problem) -> Schedule:
    """What the rows of a sound CSV compute; of sharded weights with UNSHARD, RESHARD and REDUCE_GRAD, in which a rank waits."""
    return _schedule(rows, _ops(rows, problem), problem)


def _of_actions(rows: Sequence[Sequence[str]], problem: Problem, layout: str) -> list[Finding]:
    lists = Lists.of(read_actions(rows, problem), len(problem.stages), problem.microbatches)
    misplaced = [*rules.check_placement(lists, problem)]
    findings = [*misplaced, *(finding for check in _COMPUTE for finding in check(lists))]
    if layout == "compute_only":
        return findings or [*check_compute_deadlock(lists)]
    if misplaced:  # what goes where is not known then
        return findings
    findings += [*rules.check_neighbours(lists), *rules.check_messages(lists)]
    sound = not findings
    if not any(finding.rule in _SHIFT for finding in findings):
        findings += rules.check_pair_order(lists)
    agree = not any(finding.rule == "pair-order" for finding in findings)
    findings += [*rules.check_reduce_grad(lists), *rules.check_unshard(lists)]
    if sound:  # orders that disagree are a cycle of their pair's queue already; what else deadlocks is looked for without queues
        findings += check_deadlock(lists, queues=agree)
    return findings


def _of_schedule(rows: Sequence[Sequence[str]], problem: Problem) -> Iterator[Finding]:
    """What the verifier of schedules says of it: memory, and backwards that the job does not split."""
    ops = _ops(rows, problem)
    for violation in verify_schedule(problem, _schedule(rows, ops, problem)):
        place = _PLACE.fullmatch(violation.place)
        rank, index = (int(place[1]), int(place[2])) if place else (None, None)
        cell = None if rank is None or index is None else ops[rank][index][1]
        text = "" if rank is None or cell is None else rows[rank][cell].strip()
        yield Finding(
            violation.rule,
            None if rank is None else rank + 1,
            None if cell is None else cell + 1,
            text,
            violation.message,
        )


def _schedule(rows: Sequence[Sequence[str]], ops: Sequence[Sequence[tuple[Op, int]]], problem: Problem) -> Schedule:
    collectives = tuple(map(_collectives, read_actions(rows, problem))) if problem.is_sharded else ()
    return Schedule(orders=tuple(tuple(op for op, _ in row) for row in ops), collectives=collectives)


def _collectives(row: Sequence[Action]) -> tuple[Collective, ...]:
    """Those of a rank, by how many ops are before them."""
    count, found, gathered = 0, list[Collective](), dict[int, int]()
    for action in row:
        if action.kind == "UNSHARD":
            gathered[action.stage] = len(found)
            found.append(Collective("AG", action.stage, count, count))
        elif action.kind == "RESHARD" and action.stage in gathered:
            at = gathered.pop(action.stage)
            found[at] = replace(found[at], until=count)
        elif action.kind == "REDUCE_GRAD":
            found.append(Collective("RS", action.stage, count, count))
        count += action.kind in COMPUTE
    return tuple(found)


def _ops(rows: Sequence[Sequence[str]], problem: Problem) -> list[list[tuple[Op, int]]]:
    """Per row, the compute ops with the index of their cell."""
    return [
        [
            (Op(_KINDS[action.kind], action.stage, action.microbatch), action.cell)
            for action in row
            if action.kind in COMPUTE and action.microbatch is not None
        ]
        for row in read_actions(rows, problem)
    ]

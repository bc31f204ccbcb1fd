"""What must hold for the compute actions of a CSV of PyTorch's, and for REDUCE_GRAD, UNSHARD and RESHARD in a `compute_comms` one.

Takes the action lists; gives every finding. Torch's loader (`_validate_schedule`) counts how many different microbatches of F each
stage has, and how many of B or of I with W. It does not see duplicates, nor that a backward is missing while another microbatch has
both kinds. At the others it does not look: the first costs right gradients, the last two fail with FSDP only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.formats.torch_csv.lint.actions import COMPUTE, Action, Finding, Lists, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.problem import Problem


def check_placement(lists: Lists, problem: Problem) -> Iterator[Finding]:
    """A stage's actions are in one row, that of the stage's rank in the job."""
    for row in lists.rows:
        seen: set[int] = set()
        for action in row:
            rank = problem.stages[action.stage].rank
            if action.row != rank and action.stage not in seen:
                seen.add(action.stage)
                yield action.finding("placement", f"stage {action.stage} is on rank {rank} in the job (row {rank + 1})")


def check_compute(lists: Lists) -> Iterator[Finding]:
    """Every rule but the placement."""
    for check in (check_duplicates, check_backward_kinds, check_coverage, check_compute_order, check_loss_order):
        yield from check(lists)


def check_duplicates(lists: Lists) -> Iterator[Finding]:
    """There is no duplicate action; but a stage may be gathered again after it was released (`check_unshard`)."""
    for row in lists.rows:
        for action in row:
            first = lists.at[key_of(action)]
            if first is not action and action.kind not in ("UNSHARD", "RESHARD"):
                yield action.finding("duplicate", f"it is a duplicate, first in {first.place}")


def check_backward_kinds(lists: Lists) -> Iterator[Finding]:
    """A microbatch has one backward on a stage: B, or I with W."""
    for (kind, stage, microbatch), action in lists.at.items():
        whole = lists.at.get(("B", stage, microbatch))
        if kind in ("I", "W") and whole is not None:
            yield action.finding("duplicate", f"a second backward beside {whole.name} in {whole.place}")


def check_coverage(lists: Lists) -> Iterator[Finding]:
    """Every microbatch goes forward and backward through every stage."""
    for stage in range(lists.stages):
        if stage not in lists.rank_of:
            yield Finding("missing", None, None, f"{stage}F0", f"stage {stage} is in no row")
            continue
        for microbatch in range(lists.microbatches):
            has = {kind: (kind, stage, microbatch) in lists.at for kind in COMPUTE}
            if not has["F"]:
                yield lists.missing("F", stage, microbatch, "it is missing")
            if not has["B"] and not has["I"] and not has["W"]:
                yield lists.missing("B", stage, microbatch, f"microbatch {microbatch} has no backward on stage {stage}")
            elif not has["B"] and not has["W"]:
                yield lists.missing("W", stage, microbatch, f"{stage}I{microbatch} has no W")
            elif not has["B"] and not has["I"]:
                yield lists.missing("I", stage, microbatch, f"{stage}W{microbatch} has no I")


def check_compute_order(lists: Lists) -> Iterator[Finding]:
    """In a row, F is before the backward, I before W, and each after what it needs from another stage of the same rank."""
    for (kind, stage, microbatch), action in lists.at.items():
        if kind not in COMPUTE or microbatch is None:
            continue
        for needed in _needed_here(lists, kind, stage, microbatch):
            if needed is not None and needed.row == action.row and not lists.runs_before(needed, action):
                yield action.finding("order", f"it needs {needed.name}, which is after it, in cell {needed.cell + 1}")


def _needed_here(lists: Lists, kind: str, stage: int, microbatch: int) -> tuple[Action | None, ...]:
    if kind == "F":
        return (lists.at.get(("F", stage - 1, microbatch)),)
    if kind == "W":
        return (lists.at.get(("I", stage, microbatch)),)
    return lists.at.get(("F", stage, microbatch)), lists.backward(stage + 1, microbatch)


def check_loss_order(lists: Lists) -> Iterator[Finding]:
    """The last stage's forwards run in the order of the microbatches: torch lists their losses as they come."""
    last = lists.stages - 1
    forwards = [action for (kind, stage, _), action in lists.at.items() if (kind, stage) == ("F", last)]
    for place, action in enumerate(sorted(forwards, key=lambda one: lists.position[key_of(one)])):
        if action.microbatch != place:
            message = f"it is forward number {place} of the last stage, and torch takes its loss for that of microbatch {place}"
            yield action.finding("loss-order", message)
            return


def check_reduce_grad(lists: Lists) -> Iterator[Finding]:
    """Each stage has its REDUCE_GRAD after its last W or B: there torch divides by the microbatches, and FSDP reduces."""
    for stage, rank in sorted(lists.rank_of.items()):
        reduce = lists.at.get(("REDUCE_GRAD", stage, None))
        if reduce is None:
            message = f"it is missing: the gradients stay {lists.microbatches} times too large, and FSDP does not reduce them"
            yield lists.missing("REDUCE_GRAD", stage, None, message, "reduce-grad")
            continue
        if reduce.row != rank:
            continue  # `check_placement` names it
        row = lists.rows[reduce.row]
        after = row[lists.position["REDUCE_GRAD", stage, None] :]
        late = [action for action in after if action.kind in ("W", "B") and action.stage == stage]
        if late:
            message = f"{late[0].name} in cell {late[0].cell + 1} comes after it, and what it adds is not divided or reduced"
            yield reduce.finding("reduce-grad", message)


def check_unshard(lists: Lists) -> Iterator[Finding]:
    """A stage computes between its UNSHARD and its RESHARD, if the CSV has any of them; without FSDP none is needed."""
    if not any(action.kind in ("UNSHARD", "RESHARD") for row in lists.rows for action in row):
        return
    for row in lists.rows:
        gathered: dict[int, Action] = {}
        used: set[int] = set()
        named: set[int] = set()
        for action in row:
            stage = action.stage
            if action.kind == "UNSHARD":
                if stage in gathered:
                    yield action.finding("unshard", f"stage {stage} is gathered already, since {gathered[stage].place}; FSDP fails")
                gathered[stage] = action
            elif action.kind == "RESHARD":
                if gathered.pop(stage, None) is None:
                    yield action.finding("unshard", f"stage {stage} is not gathered; FSDP fails")
                elif stage not in used:
                    yield action.finding("unshard", f"stage {stage} has not computed since its UNSHARD; FSDP fails")
                used.discard(stage)
            elif action.kind in COMPUTE:
                used.add(stage)
                if stage not in gathered and stage not in named:
                    named.add(stage)
                    yield action.finding("unshard", f"stage {stage} is not gathered here: no UNSHARD before it; FSDP fails")
        for stage, action in gathered.items():
            message = f"stage {stage} is not released at the end: no RESHARD after it; FSDP fails in the next step"
            yield action.finding("unshard", message)

"""What must hold for REDUCE_GRAD, UNSHARD and RESHARD in a `compute_comms` CSV of PyTorch's.

Takes the action lists; gives every finding. The loader looks at none of this; the first costs right gradients, the others fail with
FSDP only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.formats.torch_csv.lint.actions import COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.formats.torch_csv.lint.actions import Action, Finding
    from schedc.formats.torch_csv.lint.lists import Lists


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
        late = [action for action in row[lists.position[("REDUCE_GRAD", stage, None)] :] if _makes_gradients(action, stage)]
        if late:
            message = f"{late[0].name} in cell {late[0].cell + 1} comes after it, and what it adds is not divided or reduced"
            yield reduce.finding("reduce-grad", message)


def _makes_gradients(action: Action, stage: int) -> bool:
    return action.kind in ("W", "B") and action.stage == stage


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

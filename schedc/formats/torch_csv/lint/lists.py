"""The action lists of a CSV with the lookups that its rules share: the first place of each action, which rank a stage is on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.formats.torch_csv.lint.actions import COMPUTE, Finding

if TYPE_CHECKING:
    from schedc.formats.torch_csv.lint.actions import Action

Key = tuple[str, int, int | None]
"""Kind, stage and microbatch of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """One list of actions for each rank, and what the rules look up in it."""

    rows: tuple[tuple[Action, ...], ...]
    stages: int
    microbatches: int
    position: dict[Key, int] = field(default_factory=dict)
    """Of each action's first occurrence, its index in its row's list."""
    at: dict[Key, Action] = field(default_factory=dict)
    """Of each action, its first occurrence."""
    rank_of: dict[int, int] = field(default_factory=dict)
    """The row that has a stage's first compute action."""

    def backward(self, stage: int, microbatch: int) -> Action | None:
        """The action that computes the gradient of the stage's input: B or I."""
        return self.at.get(("B", stage, microbatch)) or self.at.get(("I", stage, microbatch))

    def crosses(self, stage: int, other: int) -> bool:
        """Whether what goes from one stage to the other leaves the rank; False where one of them does not exist."""
        here, there = self.rank_of.get(stage), self.rank_of.get(other)
        return here is not None and there is not None and here != there

    def runs_before(self, one: Action, other: Action) -> bool:
        """Whether one of two first occurrences in the same row is before the other."""
        return self.position[key_of(one)] < self.position[key_of(other)]

    def missing(self, kind: str, stage: int, microbatch: int | None, message: str, rule: str = "missing") -> Finding:
        """A finding about a missing action; its place is the row of its stage."""
        row = self.rank_of.get(stage)
        name = f"{stage}{kind}{'' if microbatch is None else microbatch}"
        return Finding(rule, None if row is None else row + 1, None, name, message)


def key_of(action: Action) -> Key:
    """What identifies the action."""
    return (action.kind, action.stage, action.microbatch)


def lists_of(rows: tuple[tuple[Action, ...], ...], stages: int, microbatches: int) -> Lists:
    """The lists with their lookups."""
    lists = Lists(rows=rows, stages=stages, microbatches=microbatches)
    for row in rows:
        for index, action in enumerate(row):
            lists.at.setdefault(key_of(action), action)
            lists.position.setdefault(key_of(action), index)
            if action.kind in COMPUTE:
                lists.rank_of.setdefault(action.stage, action.row)
    return lists

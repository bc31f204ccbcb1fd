"""What a person should know of a layout: the work and bytes of each stage, and whether the layers are far from balanced.

Takes the Workload, the Layout and their Problem; gives one row for each stage, and notes of one line each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.ir import Layout, Problem, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.problem import problem_of, stage_static_bytes
from schedc.lower.split_head import with_split_head

if TYPE_CHECKING:
    from collections.abc import Sequence


FAR = 0.03
"""A partition is far from balance if its busiest rank has this much more work than that of the balanced one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage."""

    rank: int
    layers: tuple[int, int] | None
    """[first, last) where known."""
    work_ns: int
    """Of a step: F, and BW, or B and W where these take less together and may run apart."""
    activation_bytes: int
    """What a microbatch holds from F to B."""
    static_bytes: int
    """What it holds all the time."""
    recomputes: bool
    """Whether it runs its forward again before its backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReport:
    """A layout for people."""

    stages: tuple[StageRow, ...]
    notes: tuple[str, ...]
    balanced: tuple[int, ...] | None
    """How many layers the balanced partition gives each piece of the model, where the layout is far from it; else None."""


def layout_report(workload: Workload, layout: Layout, problem: Problem, *, is_given: bool = True) -> LayoutReport:
    """The rows and notes of a layout.

    Only where the job gives the partition (`is_given`) may that be far from balanced by mistake.
    """
    static = stage_static_bytes(*(with_split_head(workload, layout) if layout.split_head else (workload, layout)))
    rows = tuple(
        StageRow(
            rank=stage.rank,
            layers=stage.layers,
            work_ns=work_ns,
            activation_bytes=stage.activation_bytes,
            static_bytes=held,
            recomputes=stage.recompute,
        )
        for stage, work_ns, held in zip(problem.stages, _works_ns(problem), static, strict=True)
    )
    divided = is_given and not layout.split_head
    notes, balanced = [], _balanced_where_far(workload, layout, problem) if divided else None
    if balanced is not None:
        other, more = balanced
        notes.append(
            f"the busiest rank has {more:.1%} more work than with the balanced partition,"
            f" {list(_counts(other))} instead of {list(_counts(layout))} layers; without pipeline.partition that is taken,"
            ' with partition = "auto" the best one is searched for'
        )
    if len(layout.paths) > 1:
        notes.append("two paths: every layer is on two ranks, so weights, gradients and optimizer state take twice the memory")
    return LayoutReport(stages=rows, notes=tuple(notes), balanced=None if balanced is None else _counts(balanced[0]))


def _balanced_where_far(workload: Workload, layout: Layout, problem: Problem) -> tuple[Layout, float] | None:
    """The layout with the balanced partition, and how much more work the busiest rank has now; None where that is little."""
    layers = workload.layers
    one_model = all(layer.position == (index, index + 1) for index, layer in enumerate(layers))
    if not one_model or len(layers) == layout.pieces:
        return None
    other = replace(layout, layers_of_stage=balanced_partition(workload, layout, layout.recomputed))
    least_ns, given_ns = (_largest_work_ns(each) for each in (problem_of(workload, other), problem))
    if given_ns <= (1 + FAR) * least_ns:
        return None
    return other, given_ns / max(1, least_ns) - 1


def _counts(layout: Layout) -> tuple[int, ...]:
    bounds = (layout.layers_of_stage[stage] for stage in layout.paths[0])
    return tuple(last - first for first, last in bounds)


def _largest_work_ns(problem: Problem) -> int:
    works: Counter[int] = Counter()
    for stage, work_ns in zip(problem.stages, _works_ns(problem), strict=True):
        works[stage.rank] += work_ns
    return max(works.values())


def _works_ns(problem: Problem) -> list[int]:
    """Of each stage, in one step."""
    of_path = [[m for m, path in enumerate(problem.path_of) if path == number] for number in range(len(problem.paths))]
    works = [0] * len(problem.stages)
    for path, microbatches in zip(problem.paths, of_path, strict=True):
        for index in path:
            stage = problem.stages[index]
            fused_ns = _total(stage.backward_ns, microbatches)
            apart_ns = _total(stage.backward_input_ns, microbatches) + _total(stage.backward_weight_ns, microbatches)
            backward_ns = min(fused_ns, apart_ns) if problem.split_backward else fused_ns
            works[index] += _total(stage.forward_ns, microbatches) + backward_ns
    return works


def _total(durations_ns: Sequence[int], microbatches: Sequence[int]) -> int:
    if len(durations_ns) == 1:
        return len(microbatches) * durations_ns[0]
    return sum(durations_ns[microbatch] for microbatch in microbatches)

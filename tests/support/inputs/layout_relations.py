"""Pairs of open layouts for `relations`: the second may choose all that the first may, and more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inputs.all_layouts import tiny_workload
from schedc.ir.layout import OpenLayout, Placement
from schedc.ir.problem import Objective
from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from schedc.ir.workload import Workload


@dataclass(frozen=True, slots=True)
class OpenJob:
    """What is trained, and what of its layout may be chosen."""

    workload: Workload
    open_layout: OpenLayout


def random_open_job(random: Random) -> OpenJob:
    """A few layers on two or three ranks, everything open but recomputation, on one or two stages a rank."""
    ranks = random.randint(2, 3)
    workload = tiny_workload(random, layers=random.randint(ranks + 1, 7), ranks=ranks, microbatches=random.randint(2, 5))
    workload = replace(workload, objective=random.choice(list(Objective)))
    return OpenJob(workload, OpenLayout(chunks=random.choice([1, 2])))


def _memory(random: Random, job: OpenJob) -> tuple[OpenJob, OpenJob]:
    devices = tuple(
        replace(
            each,
            limit_bytes=each.limit_bytes and each.limit_bytes * 3 // 2,
            capacity_bytes=each.capacity_bytes and each.capacity_bytes * 3 // 2,
        )
        for each in job.workload.devices
    )
    return job, replace(job, workload=replace(job.workload, devices=devices))


def _split(random: Random, job: OpenJob) -> tuple[OpenJob, OpenJob]:
    must, may = (replace(job, workload=replace(job.workload, split_backward=split)) for split in (False, True))
    return must, may


def _recomputation(random: Random, job: OpenJob) -> tuple[OpenJob, OpenJob]:
    given = replace(job.open_layout, recompute=(random.random() < 0.5,))
    made = replace(job.open_layout, recompute=(False,), recompute_is_open=True)
    return replace(job, open_layout=given), replace(job, open_layout=made)


def _placement(random: Random, job: OpenJob) -> tuple[OpenJob, OpenJob]:
    ranks, chunks = job.workload.ranks, job.open_layout.chunks
    name = random.choice(["loop", "wave"]) if chunks > 1 and ranks * chunks <= len(job.workload.layers) else "unidirectional"
    placed = place(name, ranks, chunks if name != "unidirectional" else 1)
    given = replace(job.open_layout, placement=Placement(rank_of_stage=placed.rank_of_stage, paths=placed.paths))
    return replace(job, open_layout=given), job


def _chunks(random: Random, job: OpenJob) -> tuple[OpenJob, OpenJob]:
    one, two = (replace(job, open_layout=replace(job.open_layout, chunks=chunks)) for chunks in (1, 2))
    return one, two


MORE_CHOICE: dict[str, Callable[[Random, OpenJob], tuple[OpenJob, OpenJob]]] = {
    "layouts: more memory": _memory,
    "layouts: backwards may be split": _split,
    "layouts: any stage may recompute": _recomputation,
    "layouts: any placement": _placement,
    "layouts: more stages on a rank": _chunks,
}

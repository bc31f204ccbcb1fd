"""Candidates: the ways to divide devices and batch that are tried, a pure function of numbers; and what became of each.

Nothing here takes time or bytes. A candidate is a row of the table, which is CSV.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING

from schedc.io.outputs import csv_bytes
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from schedc.frontend.tune_file import Across, PlacementName, StepMicrobatches
    from schedc.ir import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCandidate:
    """One way to run the training step."""

    ranks: int
    """Of each pipeline."""
    data_parallel: int
    """Pipelines."""
    microbatch_size: int
    """Sequences."""
    microbatches: int
    """Of each pipeline, in a step."""
    placement: PlacementName
    chunks: int
    """Stages on a rank."""
    zero_stage: int
    recompute: str
    """`none` or `full`."""
    across: Across | None
    """What crosses from site to site; None: there is one site."""
    ranks_of_site: tuple[int, ...]
    """Of one pipeline, for each site that it is in."""
    replicas_of_site: tuple[int, ...]
    """Of one stage, for each site that they are in."""
    versions: Versions | None = None
    """Which weights ops read where steps overlap; None: each step ends before the next begins."""
    most_delay: int | None = None
    """Where versions are bounded."""

    @property
    def stages(self) -> int:
        """Of each pipeline."""
        return self.ranks * self.chunks

    @property
    def sequences(self) -> int:
        """Of a step, of all pipelines: one update."""
        return self.data_parallel * self.microbatches * self.microbatch_size

    @property
    def title(self) -> str:
        """For people; no two are called the same where one ZeRO stage is tried."""
        across = "" if self.across is None else f", {self.across} across sites"
        placed = self.placement if self.chunks == 1 else f"{self.placement} with {self.chunks} chunks"
        recompute = "" if self.recompute == "none" else ", recomputing all stages"
        shape = f"{counted(self.ranks, 'rank')} × {counted(self.data_parallel, 'pipeline')}"
        mode = "" if self.versions is None else f", {self.versions}"
        mode += "" if self.most_delay is None else f" by {self.most_delay}"
        said = f"{counted(self.microbatches, 'microbatch')} of {self.microbatch_size}"
        return f"{shape}, {said}, {placed}{recompute}{across}{mode}"


class CandidateState(StrEnum):
    """How far the work on a candidate came."""

    BEST = "best"
    PLANNED = "planned"
    BOUNDED = "bounded"
    """Its lower bound is not below the best step: not searched."""
    NO_ROOM = "no room"
    """A rank cannot hold what it must."""
    UNKNOWN = "unknown"
    """Nobody knows how many updates its delays cost."""
    NO_PLAN = "no plan"
    """No method tried found a schedule within the memory."""
    TOO_LARGE = "too large"
    """More compute ops than are searched."""
    NOT_REACHED = "not reached"
    """The time was up, or somebody interrupted the work."""


@dataclass(slots=True, kw_only=True)
class TuneRow:
    """One candidate; filled in while it is worked on."""

    candidate: TuneCandidate
    state: CandidateState
    method: str = ""
    """What made the plan."""
    step_ns: int | None = None
    """The plan's makespan: the training step, with the collectives. Where steps overlap, the period, with the updates."""
    stage_span_ns: int | None = None
    """The longest time from the first to the last op of a rank: collectives do not count."""
    collectives_ns: int | None = None
    """Of the rank where they take longest, if nothing overlapped them."""
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    """Of the rank that holds most: all that it holds all the time, and activations."""
    bound_ns: int | None = None
    """No schedule of this candidate has a shorter step."""
    gap: float | None = None
    seconds: float = 0.0
    why_not: str = ""
    update_ns: int | None = None
    """The optimizer's step after a step that ends, of the rank where it takes longest; with a loss alone, as are the next."""
    delays: tuple[int, ...] = ()
    """Of each stage, in updates; of a plan."""
    updates: int | None = None
    """Until the loss."""
    factor: float | None = None
    """Of updates, and of tokens: times those that a run without delay needs, of the same tokens in an update."""
    time_to_loss_ns: int | None = None
    time_to_loss_bound_ns: int | None = None
    """No schedule of the candidate whose cost of delays is known reaches the loss sooner."""
    basis: str = ""
    """What the number of updates rests on."""


OF_LOSS = (
    *("versions", "most_delay", "update_ns", "delays", "updates", "factor"),
    *("time_to_loss_ns", "time_to_loss_bound_ns", "basis"),
)
"""The fields of a candidate and its row that say something only where candidates are compared by the time to a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How a pipeline's rank divides the model among its devices, and a weight among pipelines."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1

    @property
    def group(self) -> int:
        """Devices of a rank."""
        return self.tensor * self.context

    def replicas(self, pipelines: int) -> int:
        """How many devices of a stage have the same weights: all that share sequences, too."""
        return pipelines * self.context

    def divides_experts(self, pipelines: int) -> bool:
        """Whether groups of expert parallelism fill the devices of a stage (Megatron-LM, `parallel_state`)."""
        return pipelines * self.group % (self.expert * self.expert_tensor) == 0

    def expert_replicas(self, pipelines: int) -> int:
        """How many devices of a stage have the same experts."""
        return pipelines * self.group // (self.expert * self.expert_tensor)

    def has_replicas(self, pipelines: int) -> bool:
        """Whether some weights of a stage are on several devices; those of experts may be where no others are."""
        return max(self.replicas(pipelines), self.expert_replicas(pipelines)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is tried, in its order."""

    groups_of_site: tuple[int, ...]
    """How many ranks the devices of each site make: groups of tensor and context parallelism."""
    batch: int
    """Sequences of a training step, of all pipelines."""
    layers: int
    """Of the model: no pipeline has more stages."""
    ranks: tuple[int, ...]
    microbatch_sizes: tuple[int, ...]
    placements: tuple[PlacementName, ...]
    chunks: tuple[int, ...]
    zero_stages: tuple[int, ...]
    recompute: tuple[str, ...]
    across_sites: tuple[Across, ...]
    degrees: Degrees = Degrees()
    overlaps: tuple[tuple[Versions | None, int | None], ...] = ((None, None),)
    """Which weights ops read, and the most delay; no versions: steps end."""
    step_microbatches: tuple[StepMicrobatches, ...] = ("all",)
    """Of each pipeline, in a step, where steps overlap."""


def divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def candidates(choices: Choices) -> tuple[TuneCandidate, ...]:
    """All that use every device and the whole batch, each once.

    Ranks of a pipeline across sites are divided as the devices are; otherwise each site has whole pipelines.
    """
    found: dict[TuneCandidate, None] = {}
    groups = choices.groups_of_site
    for ranks in choices.ranks:
        for across, ranks_of_site, replicas_of_site in _divided(ranks, groups, choices.across_sites):
            data_parallel = sum(groups) // ranks
            # The tokens of an expert-parallel group go to all of its devices, so no such group is in two sites.
            if choices.batch % data_parallel or not all(map(choices.degrees.divides_experts, replicas_of_site)):
                continue
            of_pipeline = choices.batch // data_parallel
            tried = product(
                [size for size in choices.microbatch_sizes if of_pipeline % size == 0],
                [
                    (placement, chunks)
                    for placement in choices.placements
                    for chunks in ((1,) if placement == "unidirectional" else choices.chunks)
                    if ranks * chunks <= choices.layers and (placement == "unidirectional" or (ranks > 1 and chunks > 1))
                ],
                choices.zero_stages if choices.degrees.has_replicas(data_parallel) else (0,),  # one replica divides nothing
                choices.recompute,
                choices.overlaps if ranks > 1 else [each for each in choices.overlaps if each[0] is None],
            )
            steps = [
                (*one, of_step)
                for one in tried
                for of_step in _steps(of_pipeline // one[0], ("all",) if one[-1][0] is None else choices.step_microbatches)
            ]
            for size, (placement, chunks), zero_stage, recompute, (versions, most_delay), microbatches in steps:
                candidate = TuneCandidate(
                    ranks=ranks,
                    data_parallel=data_parallel,
                    microbatch_size=size,
                    microbatches=microbatches,
                    placement=placement,
                    chunks=chunks,
                    zero_stage=zero_stage,
                    recompute=recompute,
                    across=across,
                    ranks_of_site=ranks_of_site,
                    replicas_of_site=replicas_of_site,
                    versions=versions,
                    most_delay=most_delay,
                )
                found[candidate] = None
    return tuple(found)


def _steps(microbatches: int, choices: Sequence[StepMicrobatches]) -> list[int]:
    """How many microbatches a step may have, of those of the batch."""
    return [each for choice in choices if microbatches % (each := microbatches if choice == "all" else choice) == 0]


def _divided(
    ranks: int, groups: Sequence[int], across_sites: Sequence[Across]
) -> Iterator[tuple[Across | None, tuple[int, ...], tuple[int, ...]]]:
    """What crosses sites, the ranks of a pipeline in each site, and the replicas of a stage in each site."""
    total = sum(groups)
    if total % ranks:
        return
    if len(groups) == 1:
        yield None, (ranks,), (total // ranks,)
        return
    for across in across_sites:
        if across == "pipeline" and all(ranks * group % total == 0 for group in groups):
            yield across, tuple(ranks * group // total for group in groups), (total // ranks,)
        if across == "data-parallel" and all(group % ranks == 0 for group in groups):
            yield across, (ranks,), tuple(group // ranks for group in groups)


def rows_csv(rows: Iterable[TuneRow], *, by_loss: bool) -> bytes:
    """The table: a column per field, those of `OF_LOSS` only by loss; nanoseconds and bytes, an empty cell where there is none."""
    left_out = ("candidate", *(() if by_loss else OF_LOSS))
    of_candidate = [field.name for field in fields(TuneCandidate) if field.name not in left_out]
    others = [field.name for field in fields(TuneRow) if field.name not in left_out]
    table: list[list[object]] = [[*of_candidate, *others]]
    for row in rows:
        values = [getattr(row.candidate, name) for name in of_candidate] + [getattr(row, name) for name in others]
        table.append([" ".join(map(str, each)) if isinstance(each, tuple) else each for each in values])  # of sites, of stages
    return csv_bytes(table)

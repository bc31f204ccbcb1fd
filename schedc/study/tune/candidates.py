"""Candidates: the ways to divide devices and batch that are tried, a pure function of numbers; and what became of each.

Nothing here takes time or bytes. A candidate is a row of the table, which is CSV.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import permutations, product
from typing import TYPE_CHECKING

from schedc.io.outputs import csv_bytes
from schedc.spelling import counted
from schedc.study.tune.degrees import Degrees

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from schedc.frontend.tune_file import Across, Gathers, PlacementName, StepMicrobatches
    from schedc.ir import Versions


MOST_ORDERED = 4
"""A pipeline crosses more sites than these in the given order alone: there are too many others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCandidate:
    """One way to run the training step."""

    ranks: int
    """Of each pipeline."""
    data_parallel: int
    """Pipelines."""
    degrees: Degrees
    """How each rank divides the model."""
    microbatch_size: int
    """Sequences."""
    microbatches: int
    """Of each pipeline, in a step."""
    placement: PlacementName
    chunks: int
    """Stages on a rank."""
    zero_stage: int
    """What replicas divide: 1: optimizer state, 2: gradients, too, reduced after each backward, 3: weights, too, which each block
    gathers."""
    gathers: Gathers | None = None
    """With ZeRO 3: beside each block, layer by layer, or where the plan says, stage by stage."""
    recompute: str
    """`none`; `selective`: norms and activation functions; or `full`: the whole forward."""
    backward: str
    """`split`: B and W may run apart; `fused`: they are one, and nothing is kept for W."""
    across: Across | None
    """What crosses from site to site; None: there is one site."""
    ranks_of_site: tuple[int, ...]
    """Of one pipeline, for each site that it is in, in the order in which it crosses them."""
    replicas_of_site: tuple[int, ...]
    """Of one stage, for each site that they are in."""
    site_order: tuple[int, ...] = ()
    """The sites that a pipeline crosses, from its first rank to its last; empty: it is in one."""
    versions: Versions | None = None
    """Which weights ops read where steps overlap; None: each step ends before the next begins."""
    most_delay: int | None = None
    """Where versions are bounded."""

    @property
    def crossing(self) -> str:
        """What crosses from site to site, for people, with the order of sites unless it is the given one; empty: there is one."""
        order = " ".join(map(str, self.site_order)) if self.site_order != tuple(sorted(self.site_order)) else ""
        return " ".join(filter(None, (self.across, order)))

    @property
    def alike(self) -> TuneCandidate:
        """One of those that differ in placement, chunks and the order of sites alone: bounds for any partition are the same."""
        ranks = tuple(ranks for _, ranks in sorted(zip(self.site_order, self.ranks_of_site, strict=False))) or self.ranks_of_site
        order = tuple(sorted(self.site_order))
        return replace(self, placement="unidirectional", chunks=1, ranks_of_site=ranks, site_order=order)

    @property
    def columns(self) -> dict[str, object]:
        """By the names of the table's columns."""
        values: dict[str, object] = {}
        for field in fields(self):
            values |= self.degrees.columns if field.name == "degrees" else {field.name: getattr(self, field.name)}
        return values

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
        """For people; no two are called the same but for ZeRO 0 and 1."""
        sizes = self.degrees.columns | ({"etp": 1} if self.degrees.expert == 1 else {})
        divided = "".join(f", {name} {size}" for name, size in sizes.items() if size > 1)
        divided += f", ZeRO {self.zero_stage}" if self.zero_stage > 1 else ""
        divided += " by plan" if self.gathers == "plan" else ""
        across = f", {self.across} across sites{self.crossing.removeprefix(self.across)}" if self.across else ""
        placed = self.placement if self.chunks == 1 else f"{self.placement} with {self.chunks} chunks"
        recompute = {"none": "", "full": ", recomputing all stages"}.get(self.recompute, ", recomputing norms and activations")
        shape = f"{counted(self.ranks, 'rank')} × {counted(self.data_parallel, 'pipeline')}"
        recompute += ", fused backwards" if self.backward == "fused" and self.recompute != "selective" else ""
        mode = "" if self.versions is None else f", {self.versions}"
        mode += "" if self.most_delay is None else f" by {self.most_delay}"
        said = f"{counted(self.microbatches, 'microbatch')} of {self.microbatch_size}"
        return f"{shape}{divided}, {said}, {placed}{recompute}{across}{mode}"


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
class Choices:
    """What is tried, in its order."""

    sites: tuple[int, ...]
    """Devices of each."""
    batch: int
    """Sequences of a training step, of all pipelines."""
    layers: int
    """Of the model: no pipeline has more stages."""
    ranks: tuple[int, ...] | None
    """None: all that divide the devices."""
    microbatch_sizes: tuple[int, ...]
    placements: tuple[PlacementName, ...]
    chunks: tuple[int, ...]
    zero_stages: tuple[int, ...]
    forms: tuple[tuple[str, str], ...]
    """What backwards compute again, and whether they are split."""
    across_sites: tuple[Across, ...]
    gathers: tuple[Gathers, ...] = ("blocks",)
    degrees: tuple[Degrees, ...] = (Degrees(),)
    overlaps: tuple[tuple[Versions | None, int | None], ...] = ((None, None),)
    """Which weights ops read, and the most delay; no versions: steps end."""
    step_microbatches: tuple[StepMicrobatches, ...] = ("all",)
    """Of each pipeline, in a step, where steps overlap."""
    kinds: tuple[int, ...] = ()
    """Of each site, a number for what devices it has; empty: all have the same."""

    @property
    def site_orders(self) -> tuple[tuple[int, ...], ...]:
        """In which a pipeline may cross the sites, the given one first; of those that differ in equal sites alone, one."""
        sites = tuple(zip(self.sites, self.kinds or self.sites, strict=True))
        found: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
        for order in permutations(range(len(sites))) if len(sites) <= MOST_ORDERED else (tuple(range(len(sites))),):
            found.setdefault(tuple(sites[site] for site in order), order)
        return tuple(found.values())


def divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def candidates(choices: Choices) -> tuple[TuneCandidate, ...]:
    """All that use every device and the whole batch, each once.

    Ranks of a pipeline across sites are divided as the devices are; otherwise each site has whole pipelines.
    """
    found: dict[TuneCandidate, None] = {}
    for degrees in choices.degrees:
        groups = tuple(devices // degrees.group for devices in choices.sites)
        for ranks in choices.ranks or divisors(sum(groups)):
            if ranks > choices.layers:
                continue
            for division in _divided(ranks, groups, choices):
                found.update(dict.fromkeys(_divided_so(choices, degrees, ranks, *division)))
    return tuple(found)


def _divided_so(
    choices: Choices,
    degrees: Degrees,
    ranks: int,
    across: Across | None,
    site_order: tuple[int, ...],
    ranks_of_site: tuple[int, ...],
    replicas_of_site: tuple[int, ...],
) -> Iterator[TuneCandidate]:
    """All candidates of one way to divide devices."""
    data_parallel = sum(replicas_of_site)
    # The tokens of an expert-parallel group go to all of its devices, so no such group is in two sites.
    if choices.batch % data_parallel or not all(map(degrees.divides_experts, replicas_of_site)):
        return
    of_pipeline = choices.batch // data_parallel
    sharding = [(stage, way) for stage in choices.zero_stages for way in (choices.gathers if stage == 3 else (None,))]
    tried = product(
        [size for size in choices.microbatch_sizes if of_pipeline % size == 0],
        [
            (placement, chunks)
            for placement in choices.placements
            for chunks in ((1,) if placement == "unidirectional" else choices.chunks)
            if ranks * chunks <= choices.layers and (placement == "unidirectional" or (ranks > 1 and chunks > 1))
        ],
        sharding if degrees.has_replicas(data_parallel) else ((0, None),),  # one replica divides nothing
        choices.forms,
        choices.overlaps if ranks > 1 else [each for each in choices.overlaps if each[0] is None],
    )
    for size, (placement, chunks), (zero_stage, gathers), (recompute, backward), (versions, most_delay) in tried:
        if gathers == "plan" and chunks == 1:
            continue  # what all ops of a rank need is never released
        if versions is not None and zero_stage > 1:
            continue  # what an update would divide is read meanwhile
        for microbatches in _steps(of_pipeline // size, ("all",) if versions is None else choices.step_microbatches):
            yield TuneCandidate(
                ranks=ranks,
                data_parallel=data_parallel,
                degrees=degrees,
                microbatch_size=size,
                microbatches=microbatches,
                placement=placement,
                chunks=chunks,
                zero_stage=zero_stage,
                gathers=gathers,
                recompute=recompute,
                backward=backward,
                across=across,
                site_order=site_order,
                ranks_of_site=ranks_of_site,
                replicas_of_site=replicas_of_site,
                versions=versions,
                most_delay=most_delay,
            )


def _steps(microbatches: int, choices: Sequence[StepMicrobatches]) -> list[int]:
    """How many microbatches a step may have, of those of the batch."""
    return [each for choice in choices if microbatches % (each := microbatches if choice == "all" else choice) == 0]


def _divided(
    ranks: int, groups: Sequence[int], choices: Choices
) -> Iterator[tuple[Across | None, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """What crosses sites, their order, the ranks of a pipeline in each, and the replicas of a stage in each site."""
    total = sum(groups)
    if total % ranks:
        return
    if len(groups) == 1:
        yield None, (), (ranks,), (total // ranks,)
        return
    for across in choices.across_sites:
        if across == "pipeline" and all(ranks * group % total == 0 for group in groups):
            for order in choices.site_orders:
                yield across, order, tuple(ranks * groups[site] // total for site in order), (total // ranks,)
        if across == "data-parallel" and all(group % ranks == 0 for group in groups):
            yield across, (), (ranks,), tuple(group // ranks for group in groups)


def cell(value: object) -> object:
    """As the table has it: what is said of each site or stage, between spaces."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def rows_csv(rows: Iterable[TuneRow], *, by_loss: bool) -> bytes:
    """The table: a column per field, those of `OF_LOSS` only by loss; nanoseconds and bytes, an empty cell where there is none."""
    left_out = ("candidate", *(() if by_loss else OF_LOSS))
    others = [field.name for field in fields(TuneRow) if field.name not in left_out]
    table: list[list[object]] = []
    for row in rows:
        of_candidate = {name: value for name, value in row.candidate.columns.items() if name not in left_out}
        values = {**of_candidate, **{name: getattr(row, name) for name in others}}
        table += [] if table else [list(values)]
        table.append(list(map(cell, values.values())))
    return csv_bytes(table)

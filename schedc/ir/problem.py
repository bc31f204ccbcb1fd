"""The Problem: what must be done and what it costs. The front end makes it; everything after it reads it.

Times are integer nanoseconds, sizes integer bytes (cost model, "Time" and "Memory"). Stages, ranks, microbatches and paths are
counted from 0. Local field rules are checked on construction (`ValueError`); rules across fields are in `schedc.verify.problem`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.costs import BlockCosts
from schedc.ir.graph import Edge, share_bytes
from schedc.ir.layout import SPLIT_HEAD, Layout
from schedc.ir.ops import Kind, Op, goes_to, token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.network import Link, Network


class Objective(StrEnum):
    """What is minimized."""

    MAKESPAN = "makespan"
    """The end of the last op; of a period (`Problem.updates`), the time from one step to the next."""
    STAGE_SPAN = "stage-span"
    """The longest time from first start to last end on one rank."""


class Versions(StrEnum):
    """Which weights an op reads where steps overlap; what is read follows from the order of a rank's ops."""

    STASH = "stash"
    """F reads the newest; the backwards of a microbatch read what its F read (PipeDream)."""
    TWO_BUFFERED = "2bw"
    """All ops of step k read the weights that the update of step k - 2 made (PipeDream-2BW)."""
    BOUNDED = "bounded"
    """F and the backwards each read the newest: no version is kept, and a limit bounds the updates between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(BlockCosts):
    """A consecutive piece of the model on one rank, with the costs of its blocks."""

    rank: int
    layers: tuple[int, int] | None = None
    """The model's layers [first, last) of this stage, where known. Stages of two paths with the same layers are replicas."""
    recompute: bool = False
    """B and BW run the forward again first; their durations contain it, and `activation_bytes` is the input alone."""
    recomputed_bytes: int = 0
    """What B or BW takes besides when it starts: the activations of the forward that it runs again."""
    static_bytes: int | None = None
    """What it holds all the time, where the limit of its rank is what a capacity leaves beside that; None: not known."""
    parameters: int = 0
    """How many weights its layers have; 0: none, or not known. No schedule depends on it, nor on the next."""
    expert_parameters: int = 0
    """Those of them that are of routed experts."""
    update_ns: int = 0
    """The duration of its `U`: what the optimizer's step takes, and what goes before it. Where steps overlap."""
    version_bytes: int = 0
    """What one more version of its weights takes. Where steps overlap."""
    state_gradient_bytes: int = 0
    """What the gradients of the state (keys and values) of a whole microbatch take, where microbatches are in slices: the backward
    of the last slice takes that of all slices before it, the backward of each of these gives its own back."""

    def __post_init__(self) -> None:
        """Refuse a negative rank, and costs that cannot be."""
        BlockCosts.__post_init__(self)
        if self.rank < 0:
            raise ValueError(f"rank must be at least 0, got {self.rank}")
        if (self.static_bytes or 0) < 0:
            raise ValueError(f"static_bytes must be at least 0, got {self.static_bytes}")
        if self.update_ns < 0 or self.version_bytes < 0:
            raise ValueError(f"update_ns and version_bytes must be at least 0, got {self.update_ns} and {self.version_bytes}")
        if self.state_gradient_bytes < 0:
            raise ValueError(f"state_gradient_bytes must be at least 0, got {self.state_gradient_bytes}")
        if not 0 <= self.expert_parameters <= self.parameters:
            raise ValueError(f"expert_parameters must be 0 to parameters, got {self.expert_parameters} and {self.parameters}")
        if self.recomputed_bytes and not (self.recompute and self.recomputed_bytes > 0):
            raise ValueError(f"recomputed_bytes must be 0, or above 0 of a stage that recomputes, got {self.recomputed_bytes}")

    @property
    def most_bytes(self) -> int:
        """What one microbatch holds at most: during its backward, where the stage recomputes."""
        return self.activation_bytes + self.recomputed_bytes

    def durations_ns(self, kind: Kind) -> tuple[int, ...]:
        """The durations of the blocks of this kind: one value for all microbatches, or one per microbatch; one for U."""
        return (self.update_ns,) if kind is Kind.U else BlockCosts.durations_ns(self, kind)

    def taken_bytes(self, kind: Kind) -> int:
        """What a block of this kind takes when it (its first part) starts: the rule of the cost model, "Memory"."""
        return self.activation_bytes if kind is Kind.F else 0 if kind in (Kind.W, Kind.U) else self.recomputed_bytes

    def released_bytes(self, kind: Kind) -> int:
        """What it gives back when it (its last part) ends; below 0 nowhere: what W needs of it was taken before."""
        if kind in (Kind.F, Kind.W, Kind.U):
            return self.activation_after_input_bytes if kind is Kind.W else 0
        return self.most_bytes - (self.activation_after_input_bytes if kind is Kind.B else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """The collectives beside the pipeline: `RS(s)` after the last W of stage s, `AG(s)` before its first F (ZeRO 1).

    With ZeRO 3 (FSDP) ranks hold a shard of the weights: `AG(s)` comes before any op of the stage, as often as it was released.
    """

    size: int
    zero_stage: int
    reduce_scatter_ns: tuple[int, ...]
    """Per stage. For ZeRO 0 it is the all-reduce."""
    all_gather_ns: tuple[int, ...] = ()
    """Per stage; empty: no all-gather is modelled (ZeRO 0)."""
    trunk: str | None = None
    """None: each rank has its own resource for collectives; else they queue on this trunk with the pipeline's transfers."""
    gathered_bytes: tuple[int, ...] = ()
    """Per stage, what its weights take while they are gathered; empty: they are whole all the time (not ZeRO 3)."""
    gradient_bytes: tuple[int, ...] = ()
    """Per stage, what its gradients take from the start of its first W or BW until they are reduced; empty: they are static."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a Problem came from, as far as it does not say so itself."""

    layers_of_stage: tuple[tuple[int, int], ...]
    """The partition: per stage, its layers [first, last) of the Workload, as a Layout has them."""
    network: Network
    """Of the Workload: between any two ranks, and with what messages cost by the job, whatever the Problem's links cost now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Steps overlap: a rank begins the next step before the others have ended this one; weights change while ops are under way.

    Each stage has one update `U` per step, after all backwards of the step's microbatches there. The *delay* of a gradient is the
    number of updates of its stage between the weights that its forward read and the update that takes it; 0 where nothing overlaps.
    """

    versions: Versions
    microbatches: int
    """Of one step: those whose gradients one update takes together."""
    is_period: bool
    """The problem is one step of a run without end, its schedules are one period, which repeats (`analysis.simulation.unroll`).
    Else it is a run of `Problem.microbatches / microbatches` steps, which begins and ends empty."""
    most_delay: int | None = None
    """The most updates of a stage between the F of a microbatch and its last backward, where versions are bounded; None: any."""

    def __post_init__(self) -> None:
        """Refuse steps without microbatches, and a limit that the mode does not have or cannot keep."""
        if self.microbatches < 1:
            raise ValueError(f"microbatches of a step must be at least 1, got {self.microbatches}")
        if (self.most_delay is not None) != (self.versions is Versions.BOUNDED) or (self.most_delay or 0) < 0:
            raise ValueError(f"most_delay must be at least 0 with bounded versions, and None with others, got {self.most_delay}")


MOST_OPS = 1_000_000
"""The most compute ops of a problem (`Problem.num_ops`): checking and writing such a plan takes a good half minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A pipeline's training step: stages on ranks, paths of microbatches through them, links, memory."""

    name: str
    ranks: int
    microbatches: int
    """With slices, how many slices there are of all microbatches: each is one by its own number, those of a microbatch in a row."""
    stages: tuple[Stage, ...]
    paths: tuple[tuple[int, ...], ...]
    """The stages in the order in which a microbatch's forward visits them; one path, or two (bidirectional). With `edges` one path:
    all stages, each behind those that its edges come from."""
    path_of: tuple[int, ...]
    """Per microbatch, its path."""
    edges: tuple[Edge, ...] = ()
    """What stages take from each other; none: each takes the output of the one before it on the path, a chain."""
    slices: tuple[int, ...] = ()
    """The lengths (in tokens) of the slices of each microbatch; none: microbatches are whole. Of a stage's sizes, and of messages,
    a slice has its share (`share_bytes`); durations are given for each slice. F of a slice needs F of the slice before it on each
    stage, its backward that of the slice after it."""
    links: tuple[Link, ...] = ()
    """One for each directed pair of ranks that a transfer crosses."""
    memory_limit_bytes: tuple[int | None, ...]
    """Per rank, for activations; None: no limit."""
    split_backward: bool = True
    """Whether B and W may run apart. A schedule may always fuse them."""
    cut_blocks: bool = True
    """Whether blocks may be cut into parts. False: what executes the plan runs them whole."""
    in_order: bool = False
    """Whether microbatches enter in the order of their numbers: the first stage of a path runs their F so. False: in any order."""
    placement: str = "explicit"
    """What the job called the map of stages to ranks; for people. Code looks at `stages` and `paths`."""
    data_parallel: DataParallel | None = None
    objective: Objective = Objective.MAKESPAN
    updates: Updates | None = None
    """How steps overlap; None: each ends before the next begins, and schedules have no U."""
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """None: it was made by hand. Problems that ask for the same are equal, wherever they came from."""

    @property
    def has_split_head(self) -> bool:
        """Whether the last stages are parts of the head, one on each rank, and their join, as its placement is called."""
        return self.placement.endswith(SPLIT_HEAD)

    @property
    def body(self) -> tuple[Stage, ...]:
        """The stages that the job's placement is about: all but those of a split head."""
        return self.stages[: len(self.stages) - (self.ranks + 1 if self.has_split_head else 0)]

    @property
    def layout(self) -> Layout | None:
        """The layout that it was made in, as the job's layers have it; None: nobody knows its layers of the Workload."""
        if self.origin is None:
            return None
        split, stages = self.has_split_head, self.body
        return Layout(
            rank_of_stage=tuple(stage.rank for stage in stages),
            paths=(tuple(range(len(stages))),) if split else self.paths,
            layers_of_stage=self.origin.layers_of_stage[: len(stages)],
            recomputed=frozenset(index for index, stage in enumerate(stages) if stage.recompute),
            placement=self.placement.removesuffix(SPLIT_HEAD),
            split_head=split,
            slices=self.slices,
        )

    @property
    def is_sharded(self) -> bool:
        """Whether weights are gathered and released within a step (ZeRO 3): then schedules say when."""
        return self.data_parallel is not None and bool(self.data_parallel.gathered_bytes)

    @property
    def num_ops(self) -> int:
        """The compute ops of a schedule that splits every backward and cuts no block."""
        return 3 * sum(len(self.paths[path]) * count for path, count in Counter(self.path_of).items())

    def path(self, microbatch: int) -> tuple[int, ...]:
        """The stages that the microbatch visits, in forward order."""
        return self.paths[self.path_of[microbatch % self.microbatches]]

    def duration_ns(self, kind: Kind, stage: int, microbatch: int) -> int:
        """The duration of one whole block."""
        values = self.stages[stage].durations_ns(kind)
        return values[0] if len(values) == 1 else values[microbatch % self.microbatches]

    def edges_of(self, path: int) -> tuple[Edge, ...]:
        """What the stages of a path take from each other; of a chain, from each one to the next."""
        if self.edges:
            return self.edges
        return tuple(
            Edge(
                source=before,
                destination=after,
                message_bytes=self.stages[before].message_bytes,
                gradient_message_bytes=self.stages[before].gradient_message_bytes,
            )
            for before, after in pairwise(self.paths[path])
        )

    @property
    def is_chain(self) -> bool:
        """Whether each stage takes from the one before it on its path alone."""
        return not self.edges

    def slice_of(self, microbatch: int) -> int:
        """Which slice of its microbatch it is; 0 where microbatches are whole."""
        return microbatch % len(self.slices) if self.slices else 0

    def is_last_slice(self, microbatch: int) -> bool:
        """Whether no slice of its microbatch follows it."""
        return not self.slices or (microbatch + 1) % len(self.slices) == 0

    def share_bytes(self, size_bytes: int, microbatch: int) -> int:
        """What of the size of a whole microbatch this one has: all, or its share if it is a slice."""
        return share_bytes(size_bytes, self.slices, self.slice_of(microbatch))

    def taken_bytes(self, kind: Kind, stage: int, microbatch: int) -> int:
        """What a block takes when it (its first part) starts; the rule of the cost model, "Memory" and "Slices"."""
        of = self.stages[stage]
        if not self.slices:
            return of.taken_bytes(kind)
        taken = self.share_bytes(of.taken_bytes(kind), microbatch)
        if kind in (Kind.B, Kind.BW) and self.is_last_slice(microbatch):
            taken += sum(share_bytes(of.state_gradient_bytes, self.slices, index) for index in range(len(self.slices) - 1))
        return taken

    def released_bytes(self, kind: Kind, stage: int, microbatch: int) -> int:
        """What it gives back when it (its last part) ends."""
        of = self.stages[stage]
        if not self.slices:
            return of.released_bytes(kind)
        if kind in (Kind.F, Kind.U):
            return 0
        kept = self.share_bytes(of.activation_after_input_bytes, microbatch)
        if kind is Kind.W:
            return kept
        released = self.share_bytes(of.activation_bytes, microbatch) + self.share_bytes(of.recomputed_bytes, microbatch)
        released -= kept if kind is Kind.B else 0
        return released if self.is_last_slice(microbatch) else released + self.share_bytes(of.state_gradient_bytes, microbatch)

    def token(self, op: Op) -> str:
        """The name of an op or transfer for people: with slices `F3.2:1`, where plan files have the slice's own number."""
        return token(op, len(self.slices))

    def rank_of(self, op: Op) -> int:
        """The rank that executes the op."""
        return self.stages[op.stage].rank

    def stages_on(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank (its model chunks), ascending."""
        return tuple(index for index, stage in enumerate(self.stages) if stage.rank == rank)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Every (stage, microbatch) that must be done, by microbatch, then along its path."""
        for microbatch in range(self.microbatches):
            for stage in self.path(microbatch):
                yield stage, microbatch

    def link(self, source: int, destination: int) -> Link:
        """The link from one rank to another.

        Raises:
            KeyError: the problem has none.
        """
        for link in self.links:
            if link.source == source and link.destination == destination:
                return link
        raise KeyError(f"no link from rank {source} to rank {destination}")

    @property
    def one_message_bytes(self) -> int:
        """The size of every message between ranks; 0: they have several sizes, or none."""
        lengths = set(self.slices)
        sizes = {
            size_bytes
            for path in range(len(self.paths))
            for edge in self.edges_of(path)
            if self.stages[edge.source].rank != self.stages[edge.destination].rank
            for size_bytes in (edge.message_bytes, edge.gradient_message_bytes)
            if size_bytes is not None
        }
        return self.share_bytes(sizes.pop(), 0) if len(sizes) == 1 and len(lengths) <= 1 else 0

    def message_bytes(self, op: Op) -> int:
        """The size of a transfer: F's activation, or the gradient that B or BW sends to the previous stage of the path.

        Args:
            op: the transfer's name; with `edges` it says the stage that it goes to.
        """
        if self.edges:
            forward, to = op.kind is Kind.F, goes_to(op)
            ends = (op.stage, to) if forward else (to, op.stage)
            edge = next(each for each in self.edges if (each.source, each.destination) == ends)
            return self.share_bytes(edge.message_bytes if forward else edge.gradient_message_bytes or 0, op.microbatch)
        if op.kind is Kind.F:
            return self.share_bytes(self.stages[op.stage].message_bytes, op.microbatch)
        path = self.path(op.microbatch)
        return self.share_bytes(self.stages[path[path.index(op.stage) - 1]].gradient_message_bytes, op.microbatch)


def with_whole_weights(problem: Problem) -> Problem:
    """The problem as if weights were gathered once, at its begin, and took no memory, nor gradients: as with ZeRO 1."""
    if problem.data_parallel is None or not problem.is_sharded:
        return problem
    return replace(problem, data_parallel=replace(problem.data_parallel, zero_stage=1, gathered_bytes=(), gradient_bytes=()))

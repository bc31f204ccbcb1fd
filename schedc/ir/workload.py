"""The Workload: what must be trained and on what. No stage is in it; a Layout says which rank has which layers.

The front end makes it from a job's files; `schedc.lower.problem` makes a Problem of it and a Layout. Layers, ranks, sites and
microbatches are counted from 0. Rules across fields are in `schedc.verify.workload`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from schedc.ir.costs import BlockCosts
from schedc.ir.problem import DataParallel, Objective, Updates

if TYPE_CHECKING:
    from schedc.ir.graph import Edge
    from schedc.ir.network import Network


class Semantics(StrEnum):
    """Whose B and W a stage has (`schedc.lower.problem`)."""

    SCHEDC = "schedc"
    TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(BlockCosts):
    """A layer of the model, or a piece of it whose layers nobody measured apart: what no layout cuts.

    Its messages are what it sends and gets back if a stage ends with it.
    """

    forward_again_ns: tuple[int, ...] | None = None
    """The forward that runs again where its stage recomputes; None: takes what the forward takes."""
    parameters: int = 0
    """How many weights it has."""
    expert_parameters: int = 0
    """Those of them that are of routed experts; expert parallelism leaves them fewer replicas than the others have."""
    static_bytes: int = 0
    """What its stage holds for it all the time: weights, gradients, optimizer state."""
    state_gradient_bytes: int = 0
    """What the gradients of its state take, of a whole microbatch, where that is in slices."""
    fixed: Fraction = Fraction(0)
    """Of the durations of a whole microbatch, what each of its slices takes, however short it is."""
    quadratic: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    """Of its F and of its B, the share that grows with the square of the tokens (`schedc.lower.slices`)."""
    split_message_bytes: int = 0
    """Of a head that is split over ranks, what each part sends the join of them, and gets back: a few numbers for each token."""
    position: tuple[int, int] | None = None
    """Which of the model's layers it is, [first, last); None: not known. Two with the same position are one piece of the model that
    costs something else on another path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a rank computes on: how fast it is, and how much it can hold, in at most one of three ways; in none: without limit."""

    speed: Fraction = Fraction(1)
    """Blocks take here their layers' durations divided by it."""
    limit_bytes: int | None = None
    """Of activations."""
    in_flight: int | None = None
    """Of activations, in microbatches: this many times what one of them holds on the rank, all its stages of one path together."""
    capacity_bytes: int | None = None
    """Of everything; activations get what the rank's stages do not hold all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedWeight:
    """A weight that two layers hold. Where they are on two ranks, these send each other its gradient once in a step."""

    layers: tuple[int, int]
    gradient_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step: a model's layers, the devices and the network that it runs on, and what is sought.

    What is given for stages (`static_bytes` and the durations of `data_parallel`) is one value for each stage of any layout, or a
    list for the one layout that the job fixes.
    """

    name: str
    microbatches: int
    layers: tuple[Layer, ...]
    """In the order of the forward; of a graph, each behind those that it takes from."""
    devices: tuple[Device, ...]
    """One for each rank."""
    network: Network
    static_bytes: tuple[int, ...] = (0,)
    """What a stage holds all the time besides what its layers say."""
    data_parallel: DataParallel | None = None
    split_backward: bool = True
    """Whether B and W may run apart."""
    in_order: bool = True
    """Whether microbatches enter the pipeline in the order of their numbers; False: in any order."""
    semantics: Semantics = Semantics.SCHEDC
    objective: Objective = Objective.MAKESPAN
    updates: Updates | None = None
    """How steps overlap; None: each ends before the next begins."""
    update_ns: tuple[int, ...] = (0,)
    """Of the update of a stage's weights, where steps overlap."""
    version_bytes: tuple[int, ...] = (0,)
    """What one more version of a stage's weights takes besides what its parameters say, where steps overlap."""
    bytes_per_version_parameter: Fraction = Fraction(0)
    """What it takes for each parameter."""
    edges: tuple[Edge, ...] = ()
    """What layers (here no stages) take from each other, where they are a graph; none: each takes the output of the one before."""
    modules: tuple[int, ...] = ()
    """How many layers each of its parts has, such as an encoder and a decoder, in their order; none: they are one."""
    slices: tuple[int, ...] = ()
    """The lengths of the slices of each microbatch, as in a Problem; none: microbatches are whole."""
    ties: tuple[TiedWeight, ...] = ()
    """The weights that two layers hold."""

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.devices)

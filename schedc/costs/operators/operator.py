"""An operator: what it computes, moves and keeps on one device for one microbatch, in F, in B and in W; and the common kinds of it.

FLOPs count a multiplication and an addition as two. Bytes are what passes the device's memory, and the links. Numbers are floats,
as shares of tensors are; `schedc.costs.layers` rounds the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from schedc.costs.devices import members_in_node
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Setting

GRADIENT_BYTES = 4
"""Of each element of a weight's gradient, which is summed over microbatches in 32 bits."""


class Engine(StrEnum):
    """What computes, or moves; each reaches another share of the peak."""

    MATRIX = "matrix"
    GROUPED = "grouped"
    """Products with several matrices at once, of which each token meets one (experts)."""
    ATTENTION = "attention"
    SCAN = "scan"
    PERMUTE = "permute"
    """Rows gathered into another order."""
    LOSS = "loss"


class CollectiveKind(StrEnum):
    """What the devices of a group do together."""

    GATHER = "all-gather"
    SCATTER = "reduce-scatter"
    EXCHANGE = "all-to-all"
    RING = "ring"
    """Messages from each to the next."""


class ProductShape(NamedTuple):
    """Of a product, as tables of measured shares have it: the same in F, B and W."""

    number: float
    """Matrices, or heads of queries."""
    tokens: float
    """That each matrix meets; of a sequence."""
    inner: float
    """Elements of a token that come in; of a head of keys."""
    outer: float
    """Elements that go out; of a head of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """What one phase of an operator does."""

    flops: float = 0.0
    memory_bytes: float = 0.0
    link_bytes: float = 0.0
    """That one device sends in collectives."""
    network_bytes: float = 0.0
    """Out of its node: those of them in an exchange; of others what a device carries besides, of all rings through its node."""
    collectives: int = 0
    collective: CollectiveKind = CollectiveKind.GATHER
    spans: int = 1
    """How many devices they reach over."""
    overlapped: bool = False
    """The links work while the device computes (ring attention)."""


NO_WORK = OperatorWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One step of a layer."""

    name: str
    forward: OperatorWork = NO_WORK
    backward_input: OperatorWork = NO_WORK
    backward_weight: OperatorWork = NO_WORK
    engine: Engine = Engine.MATRIX
    shape: ProductShape | None = None
    parameters: float = 0.0
    matrices: float = 1
    """How many the parameters are, all of the shape."""
    routed: bool = False
    """They are of experts among which each token's are chosen; expert parallelism divides these among data-parallel replicas."""
    kept_for_input_bytes: float = 0.0
    """Kept from F; B frees it."""
    kept_for_weight_bytes: float = 0.0
    """Kept from F; W frees it."""
    gradient_bytes: float = 0.0
    """Kept from B; W frees it."""
    working_bytes: float = 0.0
    """What its backward takes and makes, and holds while it runs alone: the gradients of its output and its input, what it
    gathers."""
    quadratic: float = 0.0
    """Which share of its work grows with the square of the sequence: 1 where each token meets all before it."""
    state_bytes: float = 0.0
    """Keys and values, or a scan's last state, which later slices of the sequence read; their gradients take as much."""


Operators: TypeAlias = list[Operator]


def share(count: int, setting: Setting, said: str) -> float:
    """How many of a number of things a device of a tensor-parallel group has; `said` names them, as in `{} heads`.

    Raises:
        Unsupported: they cannot be divided.
    """
    if count % setting.tensor_parallel:
        raise Unsupported(f"tensor parallel size {setting.tensor_parallel} does not divide {said.format(count)}")
    return count / setting.tensor_parallel


def in_node(setting: Setting, members: int, apart: int = 1) -> int:
    """How many devices of a group, `apart` from each to the next, a node has; a group as large as a node lies in one."""
    node = setting.node
    return members if node is None or members * apart <= node else members_in_node(members, apart, node)


def _rings(setting: Setting, members: int) -> float:
    """Over how many adapters of a node a ring's bytes go: those of all its devices there; infinite: they do not leave the node."""
    near = in_node(setting, members)
    return near if near < members else inf


def matrix_product(
    name: str,
    setting: Setting,
    inner: float,
    outer: float,
    *,
    tokens: float | None = None,
    kept: float | None = None,
    matrices: float = 1,
    bias: float = 0.0,
    recomputed: bool = False,
    held: bool = True,
    gathered: bool = False,
    summed: bool = False,
    routed: bool = False,
) -> Operator:
    """A projection of tokens from `inner` to `outer` elements, by one matrix, or by several of which each token meets one.

    Args:
        name: of the operator.
        setting: for the size of an element.
        inner: elements of a token that come in, on this device.
        outer: elements that go out, on this device.
        tokens: how many tokens this device projects, over all matrices; None: those of a microbatch.
        kept: of how many tokens the input is kept for W; None: of all of them; 0 where something else keeps it.
        matrices: how many there are on this device.
        bias: parameters besides.
        recomputed: with selective recomputation the input is not kept from F: B computes it, and keeps it for W.
        held: False: the matrix is counted elsewhere.
        gathered: its input is gathered from the tensor-parallel group, each device of which keeps its share, and gathers again for
            W (Megatron-LM, `LinearWithGradAccumulationAndAsyncCommunication`).
        summed: over the tensor-parallel group, each device of which keeps its share of the output's gradient, gathered again for W.
        routed: the matrices are experts, among which each token's are chosen.
    """
    size, tokens = setting.element_bytes, setting.tokens if tokens is None else tokens
    flops = 2 * tokens * inner * outer
    weights, reads, writes = matrices * inner * outer, tokens * inner * size, tokens * outer * size
    kept_bytes = reads if kept is None else kept * inner * size
    again = recomputed and setting.selective_recompute
    group = setting.expert_tensor if routed else setting.tensor_parallel
    others = group - 1 if gathered else 0
    work = OperatorWork(flops=flops, memory_bytes=reads + weights * size + writes)
    return Operator(
        name=name,
        engine=Engine.GROUPED if routed else Engine.MATRIX,
        shape=ProductShape(matrices, tokens / matrices, inner, outer),
        forward=work,
        backward_input=work,
        backward_weight=OperatorWork(
            flops=flops,
            memory_bytes=reads + writes + 2 * GRADIENT_BYTES * weights,
            link_bytes=reads * others / group,
            network_bytes=reads * others / group / _rings(setting, group),
            collectives=min(1, others),
            spans=group,
        ),
        parameters=weights + bias if held else 0.0,
        matrices=matrices,
        routed=routed,
        working_bytes=reads * (2 if others else 1) + writes,
        kept_for_weight_bytes=0.0 if again else kept_bytes,
        gradient_bytes=writes / (group if summed else 1) + (kept_bytes if again else 0.0),
    )


def elementwise(
    name: str, setting: Setting, elements: float, *, forward: float, backward: float, kept: float = 0.0, parameters: float = 0.0
) -> Operator:
    """What passes each element by itself: its time is that of the bytes.

    `elements` are one tensor's; F and B read and write as many such tensors as `forward` and `backward` say, and F keeps `kept` for
    B.
    """
    tensor = elements * setting.element_bytes
    return Operator(
        name=name,
        forward=OperatorWork(memory_bytes=forward * tensor),
        backward_input=OperatorWork(memory_bytes=backward * tensor),
        parameters=parameters,
        kept_for_input_bytes=kept * tensor,
        working_bytes=forward * tensor,
    )


def collective(name: str, setting: Setting, elements: float, *, group: int | None = None) -> Operators:
    """An all-gather (`gather`) of each token's elements over a group, or a reduce-scatter: B has the other one.

    The name is `gather` or `scatter`; `elements` are one token's. No group: the tensor-parallel one.

    Returns:
        Nothing where the group is one device.
    """
    others = (setting.tensor_parallel if group is None else group) - 1
    if not others:
        return []
    sent_bytes, rings = others * setting.own_tokens * elements * setting.element_bytes, _rings(setting, others + 1)
    work = OperatorWork(link_bytes=sent_bytes, network_bytes=sent_bytes / rings, collectives=1, spans=others + 1)
    gather, scatter = (replace(work, collective=each) for each in (CollectiveKind.GATHER, CollectiveKind.SCATTER))
    forward, backward = (gather, scatter) if name == "gather" else (scatter, gather)
    return [Operator(name=name, forward=forward, backward_input=backward)]

"""The orders that PyTorch's own schedule generators make, as ops.

The generators run without processes: an object of each schedule class is made with only the fields that they read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.ir.ops import Kind, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KINDS = {"FORWARD": Kind.F, "BACKWARD_INPUT": Kind.B, "BACKWARD_WEIGHT": Kind.W, "FULL_BACKWARD": Kind.BW}


def bare(schedule_class: type, ranks: int, microbatches: int, chunks: int) -> Any:
    """An object of the class with the fields that its generator reads."""
    made: Any = object.__new__(schedule_class)
    made.pp_group_size = ranks
    made.n_local_stages = chunks
    made.num_stages = made._num_stages = ranks * chunks
    made._n_microbatches = microbatches
    made.number_of_rounds = max(1, microbatches // ranks)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    return made


def ops(actions: Iterable[Any]) -> Iterator[Op]:
    """What the actions compute, in their order."""
    for action in actions:
        if action is None:
            continue
        if action.sub_actions is not None:
            yield from ops(action.sub_actions)
        elif (kind := KINDS.get(action.computation_type.name)) is not None:
            yield Op(kind, action.stage_index, action.microbatch_index)


def by_rank(generator: Any) -> tuple[tuple[Op, ...], ...]:
    """The orders of all ranks, where the class makes them rank by rank."""
    return tuple(tuple(ops(generator._calculate_single_rank_operations(rank))) for rank in range(generator.pp_group_size))

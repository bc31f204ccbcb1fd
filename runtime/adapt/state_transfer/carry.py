"""The way of a training state from process to process, over gloo: every process sends what others will have, and receives its own.

What comes is put into the host's memory; what is sent from a GPU is copied to it first. All sends and receives are under way at
once, so no order of processes can block another. What a process keeps is not copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from schedc.runtime.adapt.state_transfer.pieces import Manifest
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed
from schedc.runtime.transports.gloo import GlooTransport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.runtime.adapt.places import Places
    from schedc.runtime.common.groups import Groups


class Route(NamedTuple):
    """A piece that goes from one process to another, or stays with it."""

    source: int
    destination: int
    piece: int


def routes_of(before: Places, after: Places, old: Mapping[int, int], new: Mapping[int, int]) -> list[Route]:
    """Where every piece of every pipeline goes, in an order that is the same everywhere.

    Args:
        before: the places that processes have.
        after: those that they take.
        old: the rank of each piece.
        new: the rank that it will have.
    """
    return [
        Route(before.process_at(first + old[piece]), after.process_at(first + new[piece]), piece)
        for first in range(0, len(before.of_process), before.ranks)
        for piece in sorted(old)
    ]


def carried(
    groups: Groups,
    routes: Sequence[Route],
    manifests: Sequence[Manifest],
    values: Mapping[tuple[int, str], torch.Tensor],
) -> Manifest:
    """What this process will have, once all of it has come; all processes do this together.

    Args:
        groups: of all processes.
        routes: of all pieces.
        manifests: of all processes.
        values: this process's.

    Raises:
        TransferFailed: another process has ended or does not answer.
    """
    own = groups.rank
    pairs = sorted({(min(route[:2]), max(route[:2])) for route in routes if route.source != route.destination})
    wires = {pair: GlooTransport(groups.make(pair)) for pair in pairs if own in pair}
    state, tag = Manifest({}, {}, "", {}), 0
    works: list[Any] = []
    try:
        for source, destination, piece in routes:
            manifest, coming = manifests[source], destination == own
            if coming:
                state.weights.update({key: weight for key, weight in manifest.weights.items() if key[0] == piece})
            for key, kind in manifest.tensors.items():
                if key[0] != piece:
                    continue
                tag += 1
                if coming:
                    state.tensors[key] = kind
                    state.values[key] = values[key] if source == own else torch.empty(kind.shape, dtype=kind.dtype, device="cpu")
                if 0 in kind.shape or source == destination or own not in (source, destination):
                    continue
                wire = wires[min(source, destination), max(source, destination)]
                if coming:
                    works.append(wire.receive_into(_bytes(state.values[key]), tag))
                else:
                    works.append(wire.send(_bytes(values[key].to("cpu").contiguous()), tag))
        for work in works:
            work.wait(groups.timeout_s)
    except (ConnectionLost, NoAnswer) as error:
        raise lost(own, "exchanges stages with the others", groups.timeout_s) from error
    return state


def lost(process: int, doing: str, timeout_s: float) -> TransferFailed:
    """What to raise when another process has ended or does not answer."""
    return TransferFailed(
        f"process {process} {doing}: another process has ended or failed, and its own message says why, or it does not answer in"
        f" {timeout_s:g} s; go on from a checkpoint"
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory, flat."""
    return tensor.reshape(-1).view(torch.uint8)

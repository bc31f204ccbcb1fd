"""ZeRO 1: each replica of a stage owns an equal share of its weights, gets the gradients of that share alone, and updates it.

The weights of a stage that have one type lie in one flat tensor, of which the modules' parameters become views; its shares are cut
by number of elements, across weights where that is how it comes out. A replica's share is an `nn.Parameter` for each weight, or
piece of a weight, that lies in it: what the optimizer works on (Rajbhandari et al., ZeRO, section 5.1; as in Megatron's distributed
optimizer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.distributed_c10d import ReduceScatterOptions

from schedc.runtime.replicas.gradients import gradient_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """What one replica owns of one weight."""

    stage: int
    name: str
    """The weight's name in the stage's module."""
    start: int
    """Its elements [start, stop) of the flattened weight."""
    stop: int
    weight: nn.Parameter
    """These elements, flat, with their gradient after a step; in the type of the gradient, which may be wider than the module's."""
    whole: nn.Parameter
    """The module's weight."""


class ShardedBucket:
    """Weights of one stage whose gradients are reduced to shares, and whose values are gathered from them."""

    def __init__(self, stage: int, names: Sequence[str], parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        """Lay the weights into one tensor.

        Args:
            stage: whose they are.
            names: their names.
            parameters: the weights, of one type, with gradients of one type.
            group: the replicas; this one's number in it says which share is its own.
        """
        first = parameters[0]
        self._parameters = parameters
        self._group = group
        self._chunk = max(1, -(-sum(parameter.numel() for parameter in parameters) // group.size()))
        self._whole = torch.zeros(self._chunk * group.size(), dtype=first.dtype, device=first.device)
        begin = group.rank() * self._chunk
        self._own = self._whole[begin : begin + self._chunk]
        self._places = _laid_out(parameters, self._whole)
        kind = gradient_type(first)
        self._master = self._own if kind == first.dtype else self._own.to(kind)
        self.shards: list[Shard] = []
        self._pieces: list[tuple[int, int, int]] = []
        """Of each shard, the number of its weight, and its elements [from, to) of this replica's share."""
        for number, (name, parameter, at) in enumerate(zip(names, parameters, self._places, strict=True)):
            start, stop = max(at, begin), min(at + parameter.numel(), begin + self._chunk)
            if start < stop:
                self._pieces.append((number, start - begin, stop - begin))
                weight = nn.Parameter(self._master[start - begin : stop - begin])
                self.shards.append(Shard(stage=stage, name=name, start=start - at, stop=stop - at, weight=weight, whole=parameter))
        self._share: torch.Tensor | None = None

    def begin(self) -> None:
        """Before a step: the weights have no gradients of their own."""
        for parameter in self._parameters:
            parameter.grad = None

    def gather(self) -> dist.Work:
        """Start to bring all shares of the weights' values together."""
        if self._master is not self._own:
            self._own.copy_(self._master)
        return self._group._allgather_base(self._whole, self._own)

    def start(self) -> dist.Work:
        """Start to sum what the step has added to the gradients, each share on its owner.

        Behind each share goes for every weight how many replicas have a gradient.
        """
        kind, device, size = gradient_type(self._parameters[0]), self._whole.device, self._group.size()
        flat = torch.zeros(size, self._chunk + len(self._parameters), dtype=kind, device=device)
        for number, (parameter, at) in enumerate(zip(self._parameters, self._places, strict=True)):
            if parameter.grad is not None:
                values = parameter.grad.reshape(-1)
                for owner in range(at // self._chunk, -(-(at + values.numel()) // self._chunk)):
                    begin = owner * self._chunk
                    start, stop = max(at, begin), min(at + values.numel(), begin + self._chunk)
                    flat[owner, start - begin : stop - begin] = values[start - at : stop - at]
                flat[:, self._chunk + number] = 1
                parameter.grad = None
        self._share = torch.empty(flat.shape[1], dtype=kind, device=device)
        return self._group._reduce_scatter_base(self._share, flat.view(-1), ReduceScatterOptions())

    def finish(self) -> None:
        """After the sum: add this replica's share to the gradients of its shards. A weight that no replica has used has none."""
        assert self._share is not None
        used = (self._share[self._chunk :] > 0).tolist()
        for shard, (number, start, stop) in zip(self.shards, self._pieces, strict=True):
            total, before = self._share[start:stop], shard.weight.grad
            if used[number]:
                shard.weight.grad = total if before is None else before.add_(total)
        self._share = None


def _laid_out(parameters: Sequence[nn.Parameter], whole: torch.Tensor) -> list[int]:
    """Make the parameters views of a flat tensor, one after the other; where each begins."""
    places, at = [], 0
    for parameter in parameters:
        view = whole[at : at + parameter.numel()].view(parameter.shape)
        view.copy_(parameter.detach())
        parameter.data = view
        places.append(at)
        at += parameter.numel()
    return places

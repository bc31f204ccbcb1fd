"""What replicas of a stage share: gradients that they sum, weights of which each owns a part.

A bucket is a set of weights of one stage whose gradients have one type; they travel in one flat tensor. `Bucket` sums whole
gradients, those in `.grad` or others, each time in a `GradientSum`. `ShardedBucket` is for ZeRO 1: each replica of a stage owns an
equal share of its weights, gets the gradients of that share alone, and updates it. The weights of a stage that have one type (of
DTensors what this process has of them) lie in one flat tensor, of which the modules' parameters become views; its shares are cut by
number of elements, across weights where that is how it comes out. A replica's share is an `nn.Parameter` for each weight, or piece
of a weight, that lies in it: what the optimizer works on (Rajbhandari et al., ZeRO, section 5.1; as in Megatron's distributed
optimizer).

What starts something with other processes, or waits for it, raises `TransferFailed` where one of them is lost or too late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import ReduceScatterOptions

from schedc.errors import Unsupported
from schedc.runtime.common.failure import with_others
from schedc.runtime.common.lateness import WAITS
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence

T = TypeVar("T")


class Partners(NamedTuple):
    """Processes that share something with this one."""

    group: dist.ProcessGroup
    lost: str
    """What a lost connection means."""
    timeout_s: float | None = None
    """How long to wait for them; None: let only what the device computes next wait, under the limit of the group."""

    def start(self, begin: Callable[[], T], doing: str) -> T:
        """Start something with them; `doing` is for messages.

        Raises:
            TransferFailed: one of them is lost.
        """
        with with_others(doing, self.lost):
            return begin()

    def wait(self, work: dist.Work, doing: str) -> None:
        """Wait for what was started with them.

        Raises:
            TransferFailed: one of them is lost, or too late.
        """
        if self.timeout_s is None:
            self.start(work.wait, doing)
            return
        late = f"no answer in {self.timeout_s:g} s; a replica is stuck or slower than the timeout_s given to load"
        WAITS.current = str, self.timeout_s, (f"{doing}, and waits",)
        try:
            with with_others(doing, self.lost, late):
                finish(work, self.timeout_s)
        finally:
            WAITS.current = None


def set_gradient_type(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Let the gradients of all floating-point weights add up in this type: autograd casts what it adds, and `.grad` has it."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                grad, parameter.grad = parameter.grad, None
                parameter.grad_dtype = dtype
                parameter.grad = None if grad is None else grad.to(dtype)


def is_summed(weight: torch.Tensor, among: Collection[int]) -> bool:
    """Whether a weight's gradient is to be summed over these processes of the job: not where it is one DTensor over them.

    FSDP reduces such gradients itself, and of experts that are spread over the processes each has its own.
    """
    mesh = getattr(weight, "device_mesh", None)
    return mesh is None or len({*mesh.mesh.flatten().tolist()}.intersection(among)) < 2


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Of a DTensor what this process has; another tensor as it is."""
    if not hasattr(tensor, "device_mesh"):
        return tensor
    from schedc.runtime.common import spread

    return spread.own_part(tensor, None)


def check_known(modules: Mapping[int, nn.Module], known: Collection[nn.Parameter], among: Collection[int] = ()) -> None:
    """Before a step: refuse weights whose gradients nobody would sum, since they had none at `load`.

    What is spread over the processes `among`, which sum them, is not their concern.

    Raises:
        Unsupported: one requires grad now.
    """
    for stage, module in modules.items():
        for name, weight in module.named_parameters():
            if weight.requires_grad and weight not in known and is_summed(weight, among):
                raise Unsupported(
                    f"stage {stage}: {name} requires grad, which it did not at load, so its gradients would not be summed over"
                    " replicas; load again after changing which weights are trained"
                )


def gradient_type(parameter: torch.Tensor) -> torch.dtype:
    """The type of the parameter's gradient."""
    return parameter.grad_dtype or parameter.dtype


def by_gradient_type(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The weights that have gradients, in lists of the same types of weight and gradient and the same device."""
    sets: dict[tuple[torch.dtype, torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            sets.setdefault((parameter.dtype, gradient_type(parameter), parameter.device), []).append(parameter)
    return list(sets.values())


class Bucket:
    """Weights whose gradients are summed over the replicas in one all-reduce.

    A weight that no replica has used keeps having no gradient.
    """

    def __init__(self, weights: Sequence[Sequence[nn.Parameter]], partners: Partners, doing: str) -> None:
        """Take the weights.

        Args:
            weights: of this process, with gradients of one type; each with what else holds it in this process.
            partners: the processes that have replicas.
            doing: who sums what with whom, for messages.
        """
        self._weights = weights
        self._partners = partners
        self._doing = doing
        self._before: list[list[torch.Tensor | None]] = []
        self._sum: GradientSum | None = None

    def begin(self) -> None:
        """Before a step: put aside gradients from before it, which are summed already."""
        self._before = [[weight.grad for weight in same] for same in self._weights]
        self._let_go()

    def start(self) -> None:
        """Start to sum what the step has added."""
        given = {weight: weight.grad for same in self._weights for weight in same}
        self._let_go()
        self._sum = self.sum_of(given)

    def sum_of(self, gradients: MutableMapping[nn.Parameter, torch.Tensor | None]) -> GradientSum:
        """Start to sum these gradients of the bucket's weights, which leave the mapping; what is of other weights stays.

        Raises:
            TransferFailed: one of the partners is lost.
        """
        given = [[gradients.pop(weight) for weight in same] for same in self._weights]
        first = self._weights[0][0]
        used = [any(each is not None for each in same) for same in given]
        flat = torch.cat([*map(_flat_sum, self._weights, given), _flags(used, first)])
        del given
        return GradientSum(flat, [own_part(same[0]).shape for same in self._weights], self._partners, self._doing, used)

    def finish(self) -> None:
        """Wait for the sum, and give it to the weights."""
        assert self._sum is not None
        totals, self._sum = self._sum.wait(), None
        for same, total, before in zip(self._weights, totals, self._before, strict=True):
            for number, (weight, old) in enumerate(zip(same, before, strict=True)):
                own = None if total is None else _gradient_of(weight, total.clone() if number else total)
                weight.grad = old if own is None else own if old is None else old.add_(own)
        self._before = []

    @property
    def first_weights(self) -> list[nn.Parameter]:
        """In the order of `GradientSum.wait`."""
        return [first for first, *_ in self._weights]

    def _let_go(self) -> None:
        for same in self._weights:
            for weight in same:
                weight.grad = None


class GradientSum:
    """One all-reduce of a bucket's gradients, under way; behind them goes for each how many processes have one."""

    def __init__(
        self, flat: torch.Tensor, shapes: Sequence[torch.Size], partners: Partners, doing: str, used: Sequence[bool]
    ) -> None:
        """Start it; as `Bucket.sum_of`. `used` are the weights that have a gradient here."""
        self._flat, self._shapes, self._partners, self._doing, self._used = flat, shapes, partners, doing, used
        self._work = partners.start(lambda: partners.group.allreduce([flat]), doing)

    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        return self._work.is_completed()

    def wait(self) -> list[torch.Tensor | None]:
        """The sums, by weight; None: nobody has a gradient.

        Raises:
            TransferFailed: one of the partners is lost, or too late.
        """
        self._partners.wait(self._work, self._doing)
        *sums, used = torch.split(self._flat, [*(shape.numel() for shape in self._shapes), len(self._shapes)])
        some = self._used if all(self._used) else (used > 0).tolist()  # to look, the host waits for the device
        return [total.view(shape) if any_ else None for total, shape, any_ in zip(sums, self._shapes, some, strict=True)]


def _flags(used: Sequence[bool], like: torch.Tensor) -> torch.Tensor:
    """Of each weight whether it is used, beside its gradient, which is of the type for `like`; a copy would wait for the device."""
    flags = torch.ones(len(used), dtype=gradient_type(like), device=like.device)
    for number, is_used in enumerate(used):
        if not is_used:
            flags[number] = 0
    return flags


def _flat_sum(same: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The gradients of a weight on this process, added up; of a DTensor its part, laid out as the weight is."""
    first = same[0]
    given = [each for each in gradients if each is not None]
    if hasattr(first, "device_mesh"):
        given = [_laid_out_as(first, each) for each in given]
    if not given:
        return torch.zeros(own_part(first).numel(), dtype=gradient_type(first), device=first.device)
    return (torch.stack(given).sum(0) if len(given) > 1 else given[0]).reshape(-1)


def _laid_out_as(weight: Any, gradient: Any) -> torch.Tensor:
    """This process's part of a DTensor's gradient, which may have come as partial sums."""
    return own_part(gradient.redistribute(placements=weight.placements))


def _gradient_of(weight: Any, part: torch.Tensor) -> torch.Tensor:
    """The weight's gradient, a DTensor where the weight is one; `part` is what this process has of it."""
    if not hasattr(weight, "device_mesh"):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, weight.device_mesh, weight.placements, shape=weight.shape, stride=weight.stride())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """What one replica owns of one weight."""

    stage: int
    name: str
    """The weight's name in the stage's module."""
    start: int
    """Its elements [start, stop) of the flattened weight; of a DTensor, of what this process has of it."""
    stop: int
    weight: nn.Parameter
    """These elements, flat, with their gradient after a step; in the type of the gradient, which may be wider than the module's."""
    whole: nn.Parameter
    """The module's weight."""


class ShardedBucket:
    """Weights of one stage whose gradients are reduced to shares, and whose values are gathered from them."""

    def __init__(self, stage: int, names: Mapping[nn.Parameter, str], partners: Partners, rank: int) -> None:
        """Lay the weights into one tensor.

        Args:
            stage: whose they are.
            names: the weights, of one type, with gradients of one type, and their names.
            partners: the replicas; this one's number in their group says which share is its own.
            rank: this one, for messages.
        """
        self._parameters = parameters = [*names]
        self._partners = partners
        self._stage = f"stage {stage}"
        self._rank = f"rank {rank}"
        first, group = parameters[0], partners.group
        parts = [own_part(parameter.detach()) for parameter in parameters]
        self._chunk = max(1, -(-sum(part.numel() for part in parts) // group.size()))
        self._whole = torch.zeros(self._chunk * group.size(), dtype=first.dtype, device=first.device)
        begin = group.rank() * self._chunk
        self._own = self._whole[begin : begin + self._chunk]
        self._places: list[int] = []
        """Where each weight begins."""
        at = 0
        parameter: Any
        for parameter, part in zip(parameters, parts, strict=True):
            view = self._whole[at : at + part.numel()].view(part.shape).copy_(part)
            if hasattr(parameter, "device_mesh"):  # in a storage of its own, or torch.compile fails
                parameter._local_tensor.data = torch.utils.dlpack.from_dlpack(view)
            else:
                parameter.data = view
            self._places.append(at)
            at += part.numel()
        kind = gradient_type(first)
        self._master = self._own if kind == first.dtype else self._own.to(kind)
        self.shards: list[Shard] = []
        self._pieces: list[tuple[int, int, int]] = []
        """Of each shard, the number of its weight, and its elements [from, to) of this replica's share."""
        places = zip(names.values(), parameters, self._places, [*self._places[1:], at], strict=True)
        for number, (name, parameter, at, end) in enumerate(places):
            start, stop = max(at, begin), min(end, begin + self._chunk)
            if start < stop:
                self._pieces.append((number, start - begin, stop - begin))
                weight = nn.Parameter(self._master[start - begin : stop - begin])
                self.shards.append(Shard(stage=stage, name=name, start=start - at, stop=stop - at, weight=weight, whole=parameter))
        self._sum: tuple[torch.Tensor, dist.Work] | None = None
        self._used: list[bool] = []
        """Of each weight whether it has a gradient here."""
        self._gathering: dist.Work | None = None

    def begin(self) -> None:
        """Before a step: the weights have no gradients of their own."""
        for parameter in self._parameters:
            parameter.grad = None

    def gather(self) -> None:
        """Start to bring all shares of the weights' values together."""
        if self._master is not self._own:
            self._own.copy_(self._master)
        group = self._partners.group
        doing = f"{self._rank} gathers the weights of {self._stage}"
        self._gathering = self._partners.start(lambda: group._allgather_base(self._whole, self._own), doing)

    def await_weights(self) -> None:
        """Wait until all shares have come, if they are on their way."""
        work, self._gathering = self._gathering, None
        if work is not None:
            self._partners.wait(work, f"{self._rank} gathers the weights of {self._stage}")

    def start(self) -> None:
        """Start to sum what the step has added to the gradients, each share on its owner.

        Behind each share goes for every weight how many replicas have a gradient.
        """
        group = self._partners.group
        kind, device, size = gradient_type(self._parameters[0]), self._whole.device, group.size()
        flat = torch.zeros(size, self._chunk + len(self._parameters), dtype=kind, device=device)
        self._used = [parameter.grad is not None for parameter in self._parameters]
        for number, (parameter, at) in enumerate(zip(self._parameters, self._places, strict=True)):
            if parameter.grad is not None:
                values = _flat_sum([parameter], [parameter.grad])
                for owner in range(at // self._chunk, -(-(at + values.numel()) // self._chunk)):
                    begin = owner * self._chunk
                    start, stop = max(at, begin), min(at + values.numel(), begin + self._chunk)
                    flat[owner, start - begin : stop - begin] = values[start - at : stop - at]
                flat[:, self._chunk + number] = 1
                parameter.grad = None
        share = torch.empty(flat.shape[1], dtype=kind, device=device)
        doing = f"{self._rank} sums the gradients of {self._stage}"
        work = self._partners.start(lambda: group._reduce_scatter_base(share, flat.view(-1), ReduceScatterOptions()), doing)
        self._sum = share, work

    def finish(self) -> None:
        """Wait for the sum, and add this replica's share to the gradients of its shards. A weight that nobody has used has none."""
        assert self._sum is not None
        share, work = self._sum
        self._partners.wait(work, f"{self._rank} sums the gradients of {self._stage}")
        self._sum = None
        used = self._used if all(self._used) else (share[self._chunk :] > 0).tolist()  # as in `GradientSum.wait`
        for shard, (number, start, stop) in zip(self.shards, self._pieces, strict=True):
            total, before = share[start:stop], shard.weight.grad
            if used[number]:
                shard.weight.grad = total if before is None else before.add_(total)

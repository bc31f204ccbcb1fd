"""Kinds of stages for the runtime's matrix, each beside its plain form for a model without a pipeline.

A stage takes a tensor and the microbatch's number, and gives both, so that what it draws at random can be known by that number:
the model without a pipeline draws nothing and takes what was drawn there.
"""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_single_autograd, reduce_scatter_single_autograd

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 4
LEAST = 0.1
"""What a norm adds to the variance. Of few numbers some samples have nearly none, and a gradient divided by its root says nothing
in bf16: with torch's 1e-5 moving outputs by one unit in their last place changed gradients by as much as they are."""
RANDOM = ("torch random", "python random", "numpy random", "a generator")
KINDS = ("plain", "loss with weights", "buffers", "frozen", "unfrozen", "mixture", "complex", *RANDOM)
SPREADS = (
    "alone",
    "TP",
    "TP by hand",
    "FSDP2",
    "FSDP2 by layer",
    "FSDP2 and TP",
    "FSDP2 with replicas",
    "FSDP2 in replicas",
    "experts apart",
    "experts over replicas",
    "context",
)
"""`TP by hand` has plain tensors and functions as Megatron's; `experts apart` see the same samples, those over replicas all. FSDP2
with replicas sums over all of four processes that have two shards twice; in replicas, over two, and the runtime over the others."""
PEERS = ("TP", "TP by hand", "FSDP2 and TP", "experts apart")
"""Two processes with the same samples share a stage."""
FOUR = ("FSDP2 with replicas", "FSDP2 in replicas")
OWN_SAMPLES = ("FSDP2", "FSDP2 by layer", "FSDP2 and TP", "experts over replicas", "context")
"""Two processes with other samples share a stage; four in `FOUR`."""


class Grid(NamedTuple):
    """How four processes are laid out, the last quickest."""

    copies: int
    """Jobs beside each other that know nothing of each other."""
    data: int
    ranks: int
    peers: int


def grid_of(cell: Any) -> Grid:
    """How a cell's processes are laid out."""
    if cell.spread in FOUR:
        return Grid(1, 4, 1, 1)
    peers = 1 + (cell.spread in PEERS)
    data = 1 + (cell.replicas != "one pipeline" or cell.spread in OWN_SAMPLES)
    ranks = 2 if peers * data < 4 else 1
    return Grid(4 // (peers * data * ranks), data, ranks, peers)


class Stage(nn.Module):
    """A norm, two linear layers, the way around them, and what its kind adds."""

    def __init__(self, kind: str, spread: str, index: int, drawn: dict[int, Any] | None = None) -> None:
        """`drawn` is what was drawn by the microbatch's number; None: it draws."""
        super().__init__()
        self.spread = spread
        self.kind, self.replays, self.drawn = kind, drawn is not None, drawn if drawn is not None else {}
        self.generator = torch.Generator().manual_seed(index)
        torch.manual_seed(index)
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH, LEAST), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        if kind == "buffers":
            self.register_buffer("mean", torch.zeros(WIDTH))
        if kind == "mixture":
            self.router = nn.Linear(WIDTH, 3)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if spread == "experts apart":
            self.apart = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        if kind == "complex":
            self.turn = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
        if spread == "experts over replicas":
            self.bank = nn.Parameter(0.2 * torch.randn(2, WIDTH, WIDTH))
        if kind in ("frozen", "unfrozen"):
            self.up.requires_grad_(False)
        self.body: Callable[[torch.Tensor], torch.Tensor] = self._body
        self.among: Any = None
        """The processes with which it shares what it does; None: none."""

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kind == "complex":
            x = x.real + 0.5 * x.imag if x.is_complex() else x
            y = self.body(x)
            return (torch.complex(y, 0.1 * y) @ self.turn).conj(), number
        if self.kind == "buffers":
            mean: torch.Tensor = self.get_buffer("mean")
            mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            x = x - mean.clone().to(x.dtype)
        y = self.body(x)
        if self.kind.endswith(("random", "generator")):
            y = y * torch.tensor(self._draw(int(number.flatten()[0])), dtype=y.dtype)
        if self.kind == "mixture":
            weights = self.router(y).softmax(-1) * nn.functional.one_hot(self.router(y).argmax(-1), 3)
            y = y + sum(weights[:, k : k + 1] * expert(y) for k, expert in enumerate(self.experts) if bool(weights[:, k].any()))
        if self.spread == "experts apart":
            y = y + self._all_experts(y)
        if self.spread == "experts over replicas":
            bank: Any = self.bank
            if self.among is None:
                y = y + torch.einsum("sd,edf->sf", y, bank)
            else:
                y = y + reduce_scatter_single_autograd(self._everywhere(y) @ bank.to_local()[0], "sum", 0, self.among)
        if self.spread == "context":
            seen = y if self.among is None else self._everywhere(y)
            y = y + 0.2 * (y @ seen.T).softmax(-1) @ seen  # with all of it two steps end with losses of 1e8
        return y, number

    def _everywhere(self, y: torch.Tensor) -> torch.Tensor:
        """The samples of all processes."""
        found: torch.Tensor = all_gather_single_autograd(y.contiguous(), 0, self.among)
        return found

    def _body(self, x: torch.Tensor) -> torch.Tensor:
        if self.spread == "TP by hand" and self.among is not None:
            wide = _applied(_Linear, self.norm(x), self.up.weight, self.up.bias, self.among)
            return x + _applied(_Summed, torch.tanh(wide) @ self.down.weight.T, self.among) + self.down.bias
        result: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return result

    def _all_experts(self, y: torch.Tensor) -> torch.Tensor:
        if self.among is None:
            both: torch.Tensor = self.apart[0](y) + self.apart[1](y)
            return both
        own = self.apart[dist.get_rank(self.among)]
        return _applied(_Summed, own(_applied(_Given, y, self.among)), self.among)

    def _draw(self, number: int) -> list[float]:
        if self.replays:
            found: list[float] = self.drawn[number]
            return found
        if self.kind == "python random":
            drawn = [random.random() for _ in range(WIDTH)]
        elif self.kind == "numpy random":
            drawn = np.random.rand(WIDTH).tolist()
        else:
            generator = self.generator if self.kind == "a generator" else None
            drawn = torch.rand(WIDTH, generator=generator).tolist()
        self.drawn.setdefault(number, drawn)
        return drawn


def _applied(function: Any, *given: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(*given)
    return result


class _Linear(torch.autograd.Function):
    """A product with this process's rows; its backward starts to sum the input's gradient, and computes the weight's meanwhile."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        own = gradients[0] @ weight
        work = dist.all_reduce(own, group=ctx.group, async_op=True)
        rows = gradients[0].T @ x
        assert work is not None
        work.wait()
        return own, rows, gradients[0].sum(0), None


class _Given(torch.autograd.Function):
    """To all processes the same; what comes back is summed over them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Summed(torch.autograd.Function):
    """The sum over the processes, each of which goes on with all of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class Loss(nn.Module):
    """The mean square of the difference; with weights, of what a linear layer makes of the output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(99)
        self.head = nn.Linear(WIDTH, WIDTH) if kind == "loss with weights" else None

    def forward(self, output: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        y = (output[0].abs() if output[0].is_complex() else output[0]).to(targets.dtype)
        return ((y if self.head is None else self.head(y)) - targets).pow(2).mean()


def make_stage(cell: Any, index: int, drawn: dict[int, Any] | None = None) -> Stage:
    """The stage of this place in the model, always with the same weights, in the cell's precision; under FSDP that is a policy."""
    stage = Stage(cell.kind, cell.spread, index, drawn)
    as_precise(cell, stage)
    return stage


@cache
def four_of() -> Any:
    """All processes as two replicas of two shards."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))


def dtype_of(cell: Any) -> torch.dtype:
    """The type of the cell's weights and batches."""
    if cell.precision == "float64":
        return torch.float64
    return torch.float32 if cell.precision == "autocast" or cell.spread.startswith("FSDP2") else torch.bfloat16


def as_precise(cell: Any, module: Any) -> Any:
    """The module with weights of the cell's type."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128 if tensor.is_complex() else dtype_of(cell))
    return module


SLICED = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
"""The weights of which each process has a slice by hand, along which dimension."""


def whole_of(stage: Stage, name: str, own: torch.Tensor | None) -> torch.Tensor | None:
    """What is of a weight of this name of all processes, where it was cut by hand."""
    if own is None or stage.spread != "TP by hand" or stage.among is None or name not in SLICED:
        return own
    parts = [torch.empty_like(own.contiguous()) for _ in range(2)]
    dist.all_gather(parts, own.contiguous(), group=stage.among)
    return torch.cat(parts, SLICED[name])


def spread(cell: Any, stage: Stage, mesh: Any) -> None:
    """Let the stage be what its cell says beside others on the mesh; compile what is compiled."""
    kind, own = stage.spread, mesh.get_local_rank("peers")
    if kind in ("TP by hand", "experts apart"):
        stage.among = mesh.get_group("peers")
    if kind in ("context", "experts over replicas"):
        stage.among = mesh.get_group("data")
    if kind == "experts apart":
        stage.apart[1 - own] = nn.Identity()
    if kind == "TP by hand":
        for name, dim in SLICED.items():
            weight = stage.get_parameter(name)
            weight.data = weight.data.chunk(2, dim)[own].clone()
    if kind == "experts over replicas":
        from torch.distributed.tensor import Shard, distribute_tensor

        stage.bank = nn.Parameter(distribute_tensor(stage.bank.detach(), mesh["data"], [Shard(0)]))
    if cell.compiled:
        torch._dynamo.reset()  # what processes have compiled in other cells is not the same, nor when they cease to compile
        stage.body = torch.compile(stage._body, backend="aot_eager")
    if kind in ("TP", "FSDP2 and TP"):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallelize_module(stage, mesh["peers"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if kind.startswith("FSDP2"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        low = cell.precision == "bf16"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
        own_mesh = mesh["data"]
        if kind in FOUR:
            own_mesh = four_of() if kind == "FSDP2 with replicas" else four_of()["shards"]
        for module in (*((stage.norm, stage.up) if kind.endswith("layer") else ()), stage):
            fully_shard(module, mesh=own_mesh, mp_policy=policy)

"""Kinds of stages for the runtime's matrix, each beside its plain form for a model without a pipeline.

A stage takes a tensor and the microbatch's number, and gives both, so that what it draws at random can be known by that number:
the model without a pipeline draws nothing and takes what was drawn there.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 4
KINDS = (
    "plain",
    "loss with weights",
    "buffers",
    "frozen",
    "unfrozen",
    "mixture",
    "experts apart",
    "TP",
    "FSDP2",
    "complex",
    "torch random",
    "python random",
    "numpy random",
    "a generator",
    "compiled",
)
OVER_PROCESSES = ("experts apart", "TP", "FSDP2")
"""Kinds whose stages are spread over two processes, which cannot be replicas as well."""


class Stage(nn.Module):
    """A norm, two linear layers, the way around them, and what its kind adds."""

    def __init__(self, kind: str, index: int, drawn: dict[int, Any] | None = None) -> None:
        """`drawn` is what was drawn by the microbatch's number; None: it draws."""
        super().__init__()
        self.kind, self.replays, self.drawn = kind, drawn is not None, drawn if drawn is not None else {}
        self.generator = torch.Generator().manual_seed(index)
        torch.manual_seed(index)
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        if kind == "buffers":
            self.register_buffer("mean", torch.zeros(WIDTH))
        if kind in ("mixture", "experts apart"):
            self.router = nn.Linear(WIDTH, 3)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if kind == "complex":
            self.turn = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
        if kind in ("frozen", "unfrozen"):
            self.up.requires_grad_(False)
        self.body: Callable[[torch.Tensor], torch.Tensor] = self._body
        self.among: dist.ProcessGroup | None = None
        """The processes with an expert each; None: all are here."""

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kind == "complex":
            x = x.real + 0.5 * x.imag if x.is_complex() else x
            y = self.body(x)
            return (torch.complex(y, 0.1 * y) @ self.turn).conj(), number
        if self.kind == "buffers":
            mean: torch.Tensor = self.get_buffer("mean")
            mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            x = x - mean.clone()
        y = self.body(x)
        if self.kind.endswith(("random", "generator")):
            y = y * torch.tensor(self._draw(int(number.flatten()[0])), dtype=y.dtype)
        if self.kind == "mixture":
            weights = self.router(y).softmax(-1) * nn.functional.one_hot(self.router(y).argmax(-1), 3)
            y = y + sum(weights[:, k : k + 1] * expert(y) for k, expert in enumerate(self.experts) if bool(weights[:, k].any()))
        if self.kind == "experts apart":
            y = y + self._all_experts(y)
        return y, number

    def _body(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return result

    def _all_experts(self, y: torch.Tensor) -> torch.Tensor:
        if self.among is None:
            return self.experts[0](y) + self.experts[1](y)  # type: ignore[no-any-return]
        own = self.experts[dist.get_rank(self.among)]
        return _Summed.apply(own(_Given.apply(y, self.among)), self.among)  # type: ignore[no-untyped-call,no-any-return]

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
        y = output[0].abs() if output[0].is_complex() else output[0]
        return ((y if self.head is None else self.head(y)) - targets).pow(2).mean()


def make_stage(kind: str, index: int, drawn: dict[int, Any] | None = None) -> Stage:
    """The stage of this place in the model, always with the same weights, in double precision."""
    stage = Stage(kind, index, drawn)
    for module in stage.modules():
        for name, weight in module.named_parameters(recurse=False):
            weight.data = weight.data.to(torch.complex128 if weight.is_complex() else torch.float64)
            assert getattr(module, name) is weight
    return stage.double() if kind != "complex" else stage


def spread(stage: Stage, mesh: Any, group: dist.ProcessGroup) -> None:
    """Let the stage be what its kind says beside the others of the group; compile what is compiled."""
    if stage.kind == "compiled":
        stage.body = torch.compile(stage._body, backend="aot_eager")
    elif stage.kind == "experts apart":
        stage.among = group
        for number in range(3):
            if number != dist.get_rank(group):
                stage.experts[number] = nn.Identity()
    elif stage.kind == "TP":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallelize_module(stage, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    elif stage.kind == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(stage, mesh=mesh)

"""Drawn models whose stages give each other tensors of many kinds: what rank processes run, beside one process."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runs.harness import load, piece_of, relative_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan

ROWS, WIDTH = 3, 4
MOST = 40
"""Tensors of a boundary."""


def _given(y: torch.Tensor, taken: tuple[torch.Tensor, ...]) -> dict[str, Callable[[], Any]]:
    """What a stage may give of its hidden values and of what it takes."""
    turned = torch.complex(y, y.flip(0))
    return {
        "plain": lambda: y * 2,
        "the same": lambda: y,
        "transposed": lambda: y.t(),
        "expanded": lambda: y[:1].expand(5, WIDTH),
        "strided": lambda: y[:, ::2],
        "part": lambda: y[1:],
        "scalar": lambda: y.sum(),
        "empty": lambda: y[:0],
        "complex": lambda: turned * 1j,
        "conjugate": lambda: turned.conj(),
        "negative": lambda: turned.conj().imag,
        "real": lambda: torch.view_as_real(turned),
        "single": lambda: y.float(),
        "detached": lambda: y.detach(),
        "integers": lambda: (y * 9).long(),
        "mask": lambda: y > 0,
        "constant": lambda: torch.ones(2, dtype=y.dtype),
        "taken": lambda: taken[0],
        "taken part": lambda: taken[-1][..., :1],
    }


def _number(tensor: torch.Tensor) -> torch.Tensor:
    """Something of all its elements, which are weighed unlike."""
    value = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = value.reshape(-1).double()
    return (flat * torch.linspace(0.1, 1.0, max(1, flat.numel()), dtype=torch.float64)[: flat.numel()]).sum()


class Drawn(nn.Module):
    """A stage of a model drawn by this seed, at a place in it."""

    def __init__(self, seed: int, place: int, last: bool) -> None:
        super().__init__()
        random = Random(f"{seed} {place}")
        torch.manual_seed(random.randrange(1 << 30))
        self.layer, self.scale = nn.Linear(WIDTH, WIDTH).double(), nn.Parameter(torch.rand(WIDTH).double())
        count = 1 if last else random.choice((1, 2, 5, 17, MOST))
        names = [*_given(torch.ones(ROWS, WIDTH), (torch.ones(1),))]
        self.names = ["plain"] if last else ["plain", *random.choices(names, k=count - 1)]
        random.shuffle(self.names)

    def forward(self, *taken: torch.Tensor) -> Any:
        seen = torch.stack([_number(one) for one in taken]).sum()
        y = torch.tanh(self.layer(torch.tanh(seen * 0.1 + self.scale).expand(ROWS, WIDTH) * torch.ones(ROWS, 1).double().cumsum(0)))
        given = _given(y, taken)
        found = tuple(given[name]() for name in self.names)
        return found if len(found) > 1 else found[0]


def drawn(rank: int, plan: Plan, seeds: list[int], recompute: bool) -> list[Any]:
    """Of each seed the largest error of losses and gradients of two steps and an evaluation; or what is said."""
    return [_errors(rank, plan, seed, recompute=recompute) for seed in seeds]


def _errors(rank: int, plan: Plan, seed: int, *, recompute: bool) -> Any:
    count, microbatches = len(plan.problem.paths[0]), plan.problem.microbatches

    def made(place: int) -> Drawn:
        return Drawn(seed, place, place == count - 1)

    stages = {stage: made(piece_of(plan, stage)) for stage in plan.problem.stages_on(rank)}
    whole = [made(place) for place in range(count)]
    batch = torch.rand(2, microbatches, ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
    inputs, targets = [*batch[0]], [*batch[1]]
    errors = list[float]()
    with load(plan, stages, loss_fn=nn.functional.mse_loss, recompute=recompute) as pipe:
        for _ in range(2):
            losses = [pipe.evaluate(inputs, targets), pipe.step(inputs, targets)]
            total = 0.0
            for x, target in zip(inputs, targets, strict=True):
                y: Any = (x,)
                for piece in whole:
                    y = piece(*(y if isinstance(y, tuple) else (y,)))
                loss = nn.functional.mse_loss(y, target) / microbatches
                torch.autograd.backward(loss)
                total += loss.item()
            errors += [abs(float(loss) - total) / total for loss in losses]
            for stage, module in stages.items():
                for own, right in zip(module.parameters(), whole[piece_of(plan, stage)].parameters(), strict=True):
                    errors.append(0.0 if own.grad is None and right.grad is None else relative_error(own.grad, right.grad))
    return max(errors)

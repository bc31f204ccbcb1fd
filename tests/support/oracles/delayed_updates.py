"""One process that trains with the delays of a run: all versions of all weights are kept, each block reads the one that it should.

Written from the rules alone, on plain autograd: nothing of the runtime is in it. Where versions are bounded, backwards read other
weights than forwards; linear layers and norms are then differentiated by hand, with the two weights apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from schedc.ir import Kind, Versions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from schedc.ir import Plan

Weights = dict[str, torch.Tensor]


def versions_read(plan: Plan) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Per stage and microbatch: the version that F reads, and that B or BW reads."""
    updates = plan.problem.updates
    assert updates is not None
    forward: dict[tuple[int, int], int] = {}
    backward: dict[tuple[int, int], int] = {}
    for rank in plan.ranks:
        newest: dict[int, int] = {}
        for kind, stage, number, _ in rank.compute:
            if kind is Kind.U:
                assert number == newest.get(stage, -1) + 1
                newest[stage] = number
                continue
            if updates.versions is Versions.TWO_BUFFERED:
                version = max(number // updates.microbatches - 2, -1)
                assert version <= newest.get(stage, -1)
            else:
                version = newest.get(stage, -1)
            if kind is Kind.F:
                forward[stage, number] = version
            elif kind is not Kind.W:
                backward[stage, number] = forward[stage, number] if updates.versions is Versions.STASH else version
    return forward, backward


class _Linear(torch.autograd.Function):
    """A linear layer whose backward reads other weights."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, later)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (g,), (x, later) = gradients, ctx.saved_tensors
        flat = g.flatten(0, -2)
        return g @ later, flat.T @ x.flatten(0, -2), flat.sum(0), None


class _Norm(torch.autograd.Function):
    """A layer norm whose backward reads another scale."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        inverse = 1 / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        ctx.save_for_backward(centred * inverse, inverse, later)
        return centred * inverse * scale + shift

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (g,), (normal, inverse, later) = gradients, ctx.saved_tensors
        h = g * later
        back = inverse * (h - h.mean(-1, keepdim=True) - normal * (h * normal).mean(-1, keepdim=True))
        return back, (g * normal).flatten(0, -2).sum(0), g.flatten(0, -2).sum(0), None


def _by_hand(piece: nn.Module, x: torch.Tensor, now: Weights, later: Weights) -> torch.Tensor:
    """A piece of the harness's model, whose forward reads `now` and whose backward reads `later`."""

    def linear(name: str, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Linear.apply(value, now[f"{name}.weight"], now[f"{name}.bias"], later[f"{name}.weight"])  # type: ignore[no-untyped-call]
        return result

    for name, layer in piece.named_children():
        if isinstance(layer, nn.Embedding):
            x = now[f"{name}.weight"][x]
        elif isinstance(layer, nn.Linear):
            x = linear(name, x)
        else:
            key = f"{name}.norm"
            normal: torch.Tensor = _Norm.apply(x, now[f"{key}.weight"], now[f"{key}.bias"], later[f"{key}.weight"])  # type: ignore[no-untyped-call]
            x = x + linear(f"{name}.down", torch.tanh(linear(f"{name}.up", normal)))
    return x


class DelayedTraining:
    """A run of a plan, without a pipeline."""

    def __init__(
        self,
        plan: Plan,
        pieces: Sequence[nn.Module],
        loss_fn: Callable[[Any, Any], torch.Tensor],
        optimizer_of: Callable[[int, list[nn.Parameter]], Any],
        *,
        recompute: Collection[int] = (),
        max_norm: float = math.inf,
        per_stage: bool = False,
        predicts: bool = False,
        rate_of: Callable[[float, int, int], float] | None = None,
        skipped: Collection[int] = (),
    ) -> None:
        """Take the model, whose pieces are the stages; they have the newest weights after each run.

        `rate_of` gives an update's learning rate from the group's, the stage's delay and the number of the update;
        `skipped` are updates that leave the weights as they are.
        """
        self.plan, self.pieces, self.loss_fn, self.recompute = plan, pieces, loss_fn, recompute
        self.max_norm, self.per_stage, self.predicts, self.rate_of = max_norm, per_stage, predicts, rate_of
        self.optimizers = [optimizer_of(stage, [*piece.parameters()]) for stage, piece in enumerate(pieces)]
        self.skipped = skipped
        self.ties: Sequence[tuple[tuple[int, str], tuple[int, str]]] = ()
        """Weights that start the same and stay so: stages and names."""
        self.updates = 0
        self.schedules: list[torch.optim.lr_scheduler.LRScheduler] = []
        """Of learning rates, which go on after each update."""

    def run(self, inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
        """All steps, on a microbatch each: their losses."""
        updates = self.plan.problem.updates
        assert updates is not None
        count, steps = updates.microbatches, self.plan.problem.microbatches // updates.microbatches
        self.forward, self.backward = versions_read(self.plan)
        delays = [
            max(m // count - 1 - version for (one, m), version in self.forward.items() if one == stage)
            for stage in range(len(self.pieces))
        ]
        assert tuple(delays) == self.plan.certificate.delays
        self.versions: list[dict[int, Weights]] = [{-1: self._copy(stage)} for stage in range(len(self.pieces))]
        losses = []
        for step in range(steps):
            total: list[Weights] = [{} for _ in self.pieces]
            for m in range(step * count, (step + 1) * count):
                losses.append(self._differentiate(m, inputs[m], targets[m], 1 / count, total))
            for (a, one), (b, two) in self.ties:
                total[a][one] = total[b][two] = total[a][one] + total[b][two]
            total = [
                {name: one for name, one in found.items() if piece.get_parameter(name).requires_grad}
                for piece, found in zip(self.pieces, total, strict=True)
            ]
            squares = [
                sum(
                    float(gradient.square().sum())
                    for name, gradient in found.items()
                    if (stage, name) not in dict(self.ties).values()
                )
                for stage, found in enumerate(total)
            ]
            for stage, (optimizer, found) in enumerate(zip(self.optimizers, total, strict=True)):
                norm = math.sqrt(squares[stage] if self.per_stage else sum(squares))
                before = {name: weight.detach().clone() for name, weight in self.pieces[stage].named_parameters()}
                for name, gradient in found.items():
                    self.pieces[stage].get_parameter(name).grad = gradient * min(1.0, self.max_norm / (norm + 1e-6))
                rates = [group["lr"] for group in optimizer.param_groups]
                if self.rate_of is not None:
                    for group in optimizer.param_groups:
                        group["lr"] = self.rate_of(group["lr"], delays[stage], self.updates)
                if self.updates not in self.skipped:
                    optimizer.step()
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
                optimizer.zero_grad()
                made = self._copy(stage)
                if self.predicts:
                    made = {name: weight + delays[stage] * (weight - before[name]) for name, weight in made.items()}
                self.versions[stage][step] = made
            for schedule in self.schedules:
                schedule.step()
            self.updates += 1
        return torch.stack(losses)

    def _copy(self, stage: int) -> Weights:
        return {name: weight.detach().clone() for name, weight in self.pieces[stage].named_parameters()}

    def _differentiate(self, m: int, x: torch.Tensor, target: torch.Tensor, share: float, total: list[Weights]) -> torch.Tensor:
        """Add a microbatch's gradients to `total`: its loss."""
        last = len(self.pieces) - 1
        blocks: list[tuple[torch.Tensor, torch.Tensor, Weights]] = []
        for stage, piece in enumerate(self.pieces):
            entry = x.detach()
            if entry.is_floating_point():
                entry.requires_grad_()
            now = {name: w.clone().requires_grad_() for name, w in self.versions[stage][self.forward[stage, m]].items()}
            later = self.versions[stage][self.backward[stage, m]]
            x = (
                _by_hand(piece, entry, now, later)
                if later is not self.versions[stage][self.forward[stage, m]]
                else (functional_call(piece, now, (entry,)))
            )
            if stage == last:
                loss = self.loss_fn(x, target).detach()
            if stage in self.recompute:
                now = {name: w.clone().requires_grad_() for name, w in later.items()}
                blocks.append((entry, functional_call(piece, now, (entry,)), now))
            else:
                blocks.append((entry, x, now))
        end = self.loss_fn(blocks[-1][1], target) * share
        gradient: torch.Tensor | None = None
        for stage in reversed(range(len(self.pieces))):
            entry, output, now = blocks[stage]
            wanted = [*now.values(), *([entry] if entry.requires_grad else [])]
            root = end if stage == last else output
            found = torch.autograd.grad(root, wanted, None if stage == last else gradient)
            for name, one in zip(now, found, strict=False):
                total[stage][name] = total[stage][name] + one if name in total[stage] else one
            gradient = found[-1]
        return loss

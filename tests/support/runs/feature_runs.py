"""What rank processes run in the tests of the runtime's features: recomputation, precision, what crosses boundaries."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from runs.harness import (
    TOKENS,
    WIDTH,
    Layer,
    Run,
    gradients_of,
    load,
    loss_fn,
    make_batch,
    make_stages,
    piece_of,
    relative_error,
    weights_of,
)
from schedc.runtime.adapt.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan


def recomputed(rank: int, plan: Plan, recompute: Any, *, autocast: bool = False) -> bool:
    """Two steps with dropout, with and without recomputation: whether losses, gradients and random states are equal bit by bit.

    Args:
        rank: this one.
        plan: what is run.
        recompute: as of `load`.
        autocast: whether in bf16.
    """

    def dropping() -> nn.Module:
        return nn.Sequential(Layer(), nn.Dropout(0.5)).double()

    found = []
    for again in (False, recompute):
        torch.manual_seed(rank)
        stages: dict[int, nn.Module] = {}
        for stage, module in make_stages(plan, rank).items():
            stages[stage] = nn.Sequential(module, dropping())
            if stage == plan.problem.paths[0][-1]:
                stages[stage] = nn.Sequential(dropping(), module)
        if autocast:
            for module in stages.values():
                module.float()
        with load(plan, stages, recompute=again) as pipe:
            losses = []
            for step in range(2):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    pipe.step(*make_batch(plan, step))
                losses.append(pipe.losses)
        assert len(gradients_of(stages)) == len(weights_of(stages))
        found.append([*losses, *gradients_of(stages), torch.get_rng_state()])
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class Watching(torch.autograd.Function):
    """Does nothing, and notes under what conditions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seen: list[tuple[str, bool]]) -> torch.Tensor:
        ctx.seen = seen
        seen.append(("forward", torch.is_autocast_enabled("cpu")))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.seen.append(("backward", torch.is_autocast_enabled("cpu")))
        return gradients[0], None


def autocast(rank: int, plan: Plan, recompute: bool) -> dict[str, Any]:
    """Two steps under one autocast, weights changed between, beside the model without a pipeline, microbatch by microbatch."""
    run, microbatches = Run(plan), plan.problem.microbatches
    seen: list[Any] = []
    dtypes: set[str] = set()

    def watch(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        dtypes.add(str(output.dtype))
        function: Any = Watching
        watched: torch.Tensor = function.apply(output, seen)
        return watched

    for module in (*run.stages.values(), *run.whole):
        module.float()
    for module in run.stages.values():
        module.register_forward_hook(watch)
    losses, expected, errors = [], [], []
    with run.load(recompute=recompute) as pipe, torch.autocast("cpu", torch.bfloat16):
        for step in range(2):
            run.clear()
            inputs, targets = run.batch(step)
            losses.append(pipe.step(inputs, targets).item())
            total = 0.0
            for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True):
                with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                    loss = loss_fn(run.outputs(x), y)
                with torch.autocast("cpu", enabled=False):
                    torch.autograd.backward(loss / microbatches)
                total += loss.item() / microbatches
            expected.append(total)
            errors += run.gradient_errors()
            run.descend()
    return {
        "losses": losses,
        "expected": expected,
        "error": max(errors),
        "seen": set(seen),
        "dtypes": dtypes,
    }


def accumulated(rank: int, plan: Plan, dtype: torch.dtype | None) -> tuple[float, str]:
    """The gradients' error in bf16, against float64 with the same weights, and their type."""
    run = Run(plan)
    for module in run.stages.values():
        module.bfloat16()
    for piece in run.whole:
        piece.bfloat16().double()
    with run.load(loss_fn=lambda y, t: loss_fn(y.float(), t), grad_dtype=dtype):
        run.step(0)
    found = gradients_of(run.stages)
    same = [right for stage in run.stages for right in gradients_of({0: run.whole[piece_of(plan, stage)]})]
    square = sum(float((own.double() - other).square().sum()) for own, other in zip(found, same, strict=True))
    norm = sum(float(other.square().sum()) for other in same)
    return (square / norm) ** 0.5, " ".join(sorted({str(gradient.dtype) for gradient in found}))


class Several(nn.Module):
    """A piece that takes and gives an activation, a mask and a sum that collects along the way; the first makes them of tokens."""

    def __init__(self, *, first: bool, last: bool) -> None:
        super().__init__()
        self.inner = Layer()
        self.table = nn.Embedding(TOKENS, WIDTH) if first else None
        self.head = nn.Linear(WIDTH, TOKENS) if last else None
        self.side = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, total: torch.Tensor | None = None) -> Any:
        if self.table is not None:
            x = self.table(x)
        x = self.inner(x).masked_fill(mask[..., None], 0.0)
        own = self.side(x).square().mean()
        total = own if total is None else total + own
        return (self.head(x), total) if self.head is not None else (x, mask, total)


def several_loss(given: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """The loss of what the last of `Several` gives."""
    logits, total = given
    return loss_fn(logits, targets) + total


def make_several(index: int, count: int) -> Several:
    torch.manual_seed(index)
    return Several(first=index == 0, last=index == count - 1).double()


def several(rank: int, plan: Plan, recompute: bool = False) -> dict[str, Any]:
    """Two steps of a model whose pieces exchange several tensors: the largest error of a gradient, and the losses."""
    run, count, microbatches = Run(plan), len(plan.problem.paths[0]), plan.problem.microbatches
    run.stages = {stage: make_several(piece_of(plan, stage), count) for stage in run.stages}
    run.whole = [make_several(index, count) for index in range(count)]
    errors, losses, expected = [], [], []
    with run.load(loss_fn=several_loss, recompute=recompute) as pipe:
        for step in range(2):
            tokens, targets = make_batch(plan, step)
            masks = tokens == 0
            pieces = [*zip(tokens.chunk(microbatches), masks.chunk(microbatches), strict=True)]
            losses.append(pipe.step(pieces, targets).item())
            both = zip(pieces, targets.chunk(microbatches), strict=True)
            loss = torch.stack([several_loss(run.outputs(given), wanted) for given, wanted in both]).mean()
            torch.autograd.backward(loss)
            expected.append(loss.item())
            errors += run.gradient_errors()
    return {"error": max(errors), "losses": losses, "expected": expected}


class Boundary(nn.Module):
    """A first stage that gives its input in another type; with `shrink`, in another shape from microbatch 2 on."""

    def __init__(self, dtype: torch.dtype, *, shrink: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        self.calls = 0
        self.shrink = shrink

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x[:1].to(self.dtype) if self.shrink and self.calls > 2 else x.to(self.dtype)


def magnitude(x: torch.Tensor) -> torch.Tensor:
    """A real number for any type's."""
    return (x.abs() if x.is_complex() else x).double()


class Head(nn.Module):
    """A last stage that takes tensors of any type and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.got: list[tuple[torch.dtype, tuple[int, ...], bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.got.append((x.dtype, tuple(x.shape), x.is_contiguous()))
        result: torch.Tensor = magnitude(x) * self.weight
        return result


def boundary(rank: int, plan: Plan, dtype: torch.dtype, shape: Sequence[int], shrink: bool = False) -> list[Any]:
    """A plan of two stages with a boundary of this type: what the last stage got, and its gradient."""
    head = Head()
    stages: dict[int, nn.Module] = {0: Boundary(dtype, shrink=shrink)} if rank == 0 else {1: head}
    torch.manual_seed(0)
    batch = torch.randn(plan.problem.microbatches, *shape)
    with load(plan, stages, loss_fn=lambda y, _: y.mean()) as pipe:
        total = pipe.step(list(batch), list(batch))
    expected = magnitude(batch.to(dtype)).mean()
    gradient = head.weight.grad
    return [*head.got, bool(torch.isclose(total, expected)), gradient is None or bool(torch.isclose(gradient.double(), expected))]


class Changing(nn.Module):
    """A first stage whose third microbatch differs from those before it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.way = way
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        y = x * self.weight
        if self.calls < 3:
            return y, x
        if self.way == "wrapped":
            wrapper: Any = TwoTensor
            return wrapper(y, y), x
        return {"fewer": y, "more": (y, x, x), "graph": (y.detach(), x), "shape": (y, x[:1]), "type": (y, x.long())}[self.way]


def change(rank: int, plan: Plan, way: str) -> str:
    """A first stage that changes what it gives: what each rank says."""
    torch.manual_seed(0)
    batch = [torch.ones(3, 2)] * plan.problem.microbatches
    stages: dict[int, nn.Module] = {0: Changing(way)} if rank == 0 else {1: nn.Bilinear(2, 2, 1)}
    load(plan, stages, loss_fn=lambda y, _: y.mean()).step(batch, batch)
    return "stepped"


def on_another_default_device(rank: int, plan: Plan, channels: Any) -> list[bool]:
    """Whether steps give the same gradients, and evaluations the same loss, where tensors are made on a device without values."""
    found: list[list[torch.Tensor]] = []
    for device in (None, "meta"):
        stages, batch, monitor = make_stages(plan, rank), make_batch(plan, 0), Monitor(least_gap_s=0)
        torch.set_default_device(device)
        try:
            with load(plan, stages, channels=channels, observe=monitor, wrap=monitor.wrap) as pipe:
                losses = [pipe.step(*batch, weights=[1.0] * plan.problem.microbatches), pipe.evaluate(*batch)]
            monitor.close()
        finally:
            torch.set_default_device(None)
        found.append([*losses, *gradients_of(stages)])
    return [torch.equal(one, other) for one, other in zip(*found, strict=True)]


class Conjugating(nn.Module):
    """A layer of complex numbers that conjugates what it takes or gives, and has an imaginary part of it as a second output."""

    def __init__(self, *, takes: bool) -> None:
        super().__init__()
        self.takes = takes
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.complex128))

    def forward(self, x: torch.Tensor, part: torch.Tensor | None = None) -> Any:
        if part is None:
            y = x.to(torch.complex128) @ self.weight
            return (y if self.takes else y.conj()), y.conj().imag
        return (x.conj() if self.takes else x) @ self.weight * part


def conjugate(rank: int, plan: Plan) -> list[float]:
    """Steps in which one stage or the other conjugates what crosses: the errors of losses and gradients."""

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (output.real * targets + 2 * output.imag * targets).mean()

    errors = []
    for takes in (False, True):
        torch.manual_seed(0)
        pieces = [Conjugating(takes=takes) for _ in range(2)]
        inputs, targets = torch.randn(2, plan.problem.microbatches, 3, dtype=torch.float64)
        expected = loss(pieces[1](*pieces[0](inputs)), targets)
        torch.autograd.backward(expected)
        own = pieces[rank]
        right, own.weight.grad = own.weight.grad, None
        with load(plan, {rank: own}, loss_fn=loss) as pipe:
            errors.append(abs(pipe.step(inputs, targets).item() - expected.item()))
        errors.append(relative_error(own.weight.grad, right))
    return errors

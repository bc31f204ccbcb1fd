"""What rank processes run in the tests of the runtime's features: precision, recomputation, several tensors."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import schedc.runtime
from runs.pipeline_runs import TOKENS, WIDTH, Layer, loss_fn, make_batch, make_piece, make_stages, piece_of, relative_error
from runs.replicated_runs import live_tensors, whole_batch
from schedc.runtime.adapt.monitor import Monitor

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


class Dropping(nn.Module):
    """A layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(self.inner(x))
        return result


def recomputed(rank: int, plan: Plan, recompute: Any, *, autocast: bool = False) -> bool:
    """Two steps with dropout, with and without recomputation: whether losses, gradients and random states are equal bit by bit."""
    found = []
    for again in (False, recompute):
        torch.manual_seed(rank)
        stages = {stage: nn.Sequential(module, Dropping().double()) for stage, module in make_stages(plan, rank).items()}
        last = plan.problem.paths[0][-1]
        if last in stages:
            stages[last] = nn.Sequential(Dropping().double(), stages[last][0])
        if autocast:
            for module in stages.values():
                module.float()
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, recompute=again) as pipe:
            losses = []
            for step in range(2):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    pipe.step(*whole_batch(plan, 1, step))
                losses.append(pipe.losses)
        gradients = [weight.grad for module in stages.values() for weight in module.parameters()]
        found.append([*losses, *gradients, torch.get_rng_state()])
    assert all(one is not None for one in found[0])
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


class Watched(nn.Module):
    """A stage that notes whether its forward and its backward run under autocast, and what it gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[Any] = []
        self.dtypes: set[torch.dtype] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        self.dtypes.add(result.dtype)
        function: Any = Watching
        watched: torch.Tensor = function.apply(result, self.seen)
        return watched


def autocast(rank: int, plan: Plan, recompute: bool) -> dict[str, Any]:
    """Two steps under one autocast, weights changed between, beside the model without a pipeline, microbatch by microbatch."""
    count = len(plan.problem.paths[0])
    stages = {stage: Watched(module.float()) for stage, module in make_stages(plan, rank).items()}
    whole = nn.ModuleList(make_piece(index, count).float() for index in range(count))
    losses, expected, errors = [], [], []
    with (
        schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, recompute=recompute) as pipe,
        torch.autocast("cpu", torch.bfloat16),
    ):
        for step in range(2):
            inputs, targets = whole_batch(plan, 1, step)
            losses.append(pipe.step(inputs, targets).item())
            total = 0.0
            for x, y in zip(inputs.chunk(plan.problem.microbatches), targets.chunk(plan.problem.microbatches), strict=True):
                with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                    for piece in whole:
                        x = piece(x)
                    loss = loss_fn(x, y)
                with torch.autocast("cpu", enabled=False):
                    torch.autograd.backward(loss / plan.problem.microbatches)
                total += loss.item() / plan.problem.microbatches
            expected.append(total)
            for stage, module in stages.items():
                for own, other in zip(module.parameters(), whole[piece_of(plan, stage)].parameters(), strict=True):
                    errors.append(relative_error(own.grad, other.grad))
            with torch.no_grad():
                for parameter in (*nn.ModuleList(stages.values()).parameters(), *whole.parameters()):
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=0.5)
                        parameter.grad = None
    return {
        "losses": losses,
        "expected": expected,
        "error": max(errors),
        "seen": {one for module in stages.values() for one in module.seen},
        "dtypes": {str(dtype) for module in stages.values() for dtype in module.dtypes},
    }


def accumulated(rank: int, plan: Plan, dtype: torch.dtype | None) -> tuple[float, str]:
    """The gradients' error in bf16, against float64 with the same weights, and their type."""
    stages = {stage: module.bfloat16() for stage, module in make_stages(plan, rank).items()}
    count = len(plan.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count).bfloat16().double() for index in range(count)))
    inputs, targets = whole_batch(plan, 1, 0)
    with schedc.runtime.load(
        plan, stages=stages, loss_fn=lambda y, t: loss_fn(y.float(), t), timeout_s=60, grad_dtype=dtype
    ) as pipe:
        pipe.step(inputs, targets)
    torch.autograd.backward(loss_fn(whole(inputs), targets))
    square, norm = 0.0, 0.0
    for stage, module in stages.items():
        for own, other in zip(module.parameters(), whole[piece_of(plan, stage)].parameters(), strict=True):
            assert own.grad is not None and other.grad is not None
            square += float((own.grad.double() - other.grad).square().sum())
            norm += float(other.grad.square().sum())
    dtypes = {str(weight.grad.dtype) for module in stages.values() for weight in module.parameters() if weight.grad is not None}
    return (square / norm) ** 0.5, " ".join(sorted(dtypes))


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
    count = len(plan.problem.paths[0])
    stages = {stage: make_several(piece_of(plan, stage), count) for stage in plan.problem.stages_on(rank)}
    whole = [make_several(index, count) for index in range(count)]
    errors, losses, expected = [], [], []
    microbatches = plan.problem.microbatches
    with schedc.runtime.load(plan, stages=stages, loss_fn=several_loss, timeout_s=60, recompute=recompute) as pipe:
        for step in range(2):
            tokens, targets = whole_batch(plan, 1, step)
            masks = tokens == 0
            pieces = [*zip(tokens.chunk(microbatches), masks.chunk(microbatches), strict=True)]
            losses.append(pipe.step(pieces, targets).item())
            alone = []
            for given, wanted in zip(pieces, targets.chunk(microbatches), strict=True):
                value: Any = given
                for piece in whole:
                    value = piece(*value)
                alone.append(several_loss(value, wanted))
            loss = torch.stack(alone).mean()
            torch.autograd.backward(loss)
            expected.append(loss.item())
            for stage, module in stages.items():
                same = whole[piece_of(plan, stage)].parameters()
                errors += [relative_error(own.grad, other.grad) for own, other in zip(module.parameters(), same, strict=True)]
    return {"error": max(errors), "losses": losses, "expected": expected}


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
    pipe = schedc.runtime.load(plan, stages=stages, loss_fn=lambda y, _: y.mean(), timeout_s=60)
    try:
        pipe.step(batch, batch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "stepped"


def on_another_default_device(rank: int, plan: Plan, channels: Any) -> list[bool]:
    """Whether steps give the same gradients, and evaluations the same loss, where tensors are made on a device without values."""
    found: list[list[torch.Tensor]] = []
    for device in (None, "meta"):
        stages, batch, monitor = make_stages(plan, rank), make_batch(plan, 0), Monitor(least_gap_s=0)
        torch.set_default_device(device)
        try:
            with schedc.runtime.load(
                plan, stages=stages, loss_fn=loss_fn, channels=channels, observe=monitor, wrap=monitor.wrap
            ) as pipe:
                losses = [pipe.step(*batch, weights=[1.0] * plan.problem.microbatches), pipe.evaluate(*batch)]
            monitor.close()
        finally:
            torch.set_default_device(None)
        found.append(
            [*losses, *(weight.grad for stage in stages.values() for weight in stage.parameters() if weight.grad is not None)]
        )
    return [torch.equal(one, other) for one, other in zip(*found, strict=True)]


def recomputed_under_autocast(rank: int, plan: Plan, recompute: Any) -> bool:
    """`recomputed` in bf16."""
    return recomputed(rank, plan, recompute, autocast=True)


def losses_of_microbatches(rank: int, plan: Plan) -> tuple[list[float], list[float]]:
    """The losses that the pipe says, and those of the model without a pipeline, by microbatch."""
    count = len(plan.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    inputs, targets = whole_batch(plan, 1, 0)
    with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60) as pipe:
        assert pipe.losses.shape == (0,)
        pipe.step(inputs, targets)
        assert (pipe.losses.dtype, pipe.losses.requires_grad) == (torch.float64, False)
        found = pipe.losses.tolist()
    both = zip(inputs.chunk(len(found)), targets.chunk(len(found)), strict=True)
    return found, [loss_fn(whole(x), y).item() for x, y in both]


def live_recomputed(rank: int, plan: Plan) -> list[int]:
    """`live_tensors` with recomputation."""
    return live_tensors(rank, plan, 1, recompute=True)


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
        with schedc.runtime.load(plan, stages={rank: own}, loss_fn=loss, timeout_s=60) as pipe:
            errors.append(abs(pipe.step(inputs, targets).item() - expected.item()))
        errors.append(relative_error(own.weight.grad, right))
    return errors

"""What the rank processes of the runtime's tests run: steps of a plan, beside the same model without a pipeline."""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from schedc.errors import SchedcError
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.common.hooks import Observer, OpTimes
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan

WIDTH = 6
TOKENS = 7
SAMPLES = 2


class Layer(nn.Module):
    """A piece of the model: a norm, two linear layers and the way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return result


def piece_of(plan: Plan, stage: int) -> int:
    """The place of a stage on its path; stages of two paths at the same place are replicas."""
    return next(path.index(stage) for path in plan.problem.paths if stage in path)


def make_piece(index: int, count: int) -> nn.Module:
    """Piece `index` of a model of `count`, always with the same weights: embedding first, logits last."""
    torch.manual_seed(index)
    layers: list[nn.Module] = [Layer()]
    if index == 0:
        layers.insert(0, nn.Embedding(TOKENS, WIDTH))
    if index == count - 1:
        layers.append(nn.Linear(WIDTH, TOKENS))
    return nn.Sequential(*layers).double()


def make_stages(plan: Plan, rank: int) -> dict[int, nn.Module]:
    """The rank's stages."""
    count = len(plan.problem.paths[0])
    return {stage: make_piece(piece_of(plan, stage), count) for stage in plan.problem.stages_on(rank)}


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def make_batch(plan: Plan, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randint(TOKENS, (2, SAMPLES * plan.problem.microbatches, 3), generator=generator)
    return batch[0], batch[1]


def train(rank: int, plan: Plan, steps: int = 2) -> dict[str, Any]:
    """Train with the plan and without: the largest relative error of a gradient, both losses, whether the order was the plan's."""
    ran: list[Op] = []
    stages = make_stages(plan, rank)
    count = len(plan.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    both = [*nn.ModuleList(stages.values()).parameters(), *whole.parameters()]
    errors, losses, expected = [], [], []

    class Order(Observer):
        def op(self, times: OpTimes) -> None:
            ran.append(times.op)

    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, observe=Order()) as pipe:
        for step in range(steps):
            inputs, targets = make_batch(plan, step)
            for parameter in both:
                parameter.grad = None
            losses.append(pipe.step(inputs, targets).item())
            loss = loss_fn(whole(inputs), targets)
            torch.autograd.backward(loss)
            expected.append(loss.item())
            for stage, module in stages.items():
                same = whole[piece_of(plan, stage)].parameters()
                errors += [relative_error(own.grad, other.grad) for own, other in zip(module.parameters(), same, strict=True)]
            with torch.no_grad():  # not torch.optim, which takes seconds to load
                for parameter in both:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=0.1)
    return {"error": max(errors), "losses": losses, "expected": expected, "in_order": ran == [*plan.ranks[rank].compute] * steps}


def relative_error(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """The norm of the difference, in units of the expected one's."""
    assert found is not None and expected is not None
    return float((found - expected).norm() / expected.norm().clamp_min(1e-300))


def accumulate(rank: int, plan: Plan) -> float:
    """Two steps without `zero_grad` between: the largest error against the sum of both steps' gradients taken apart."""
    stages = make_stages(plan, rank)
    parameters = [parameter for module in stages.values() for parameter in module.parameters()]
    sums: list[torch.Tensor] = []
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60) as pipe:
        for step in range(2):
            pipe.step(*make_batch(plan, step))
            given = [parameter.grad for parameter in parameters if parameter.grad is not None]
            sums = [old + new for old, new in zip(sums, given, strict=True)] if sums else given
            for parameter in parameters:
                parameter.grad = None
        for step in range(2):
            pipe.step(*make_batch(plan, step))
    return max(relative_error(parameter.grad, total) for parameter, total in zip(parameters, sums, strict=True))


def live_things(rank: int, plan: Plan) -> tuple[list[int], list[int]]:
    """What the process holds in memory: blocks after each op of the first step, tensors after each of four steps."""
    blocks: list[int] = []
    counts: list[int] = []

    class Blocks(Observer):
        def op(self, times: OpTimes) -> None:
            if not counts:
                blocks.append(sum(type(thing) is StageBlock for thing in gc.get_objects()))

    with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60, observe=Blocks()) as pipe:
        for step in range(4):
            pipe.step(*make_batch(plan, step))
            gc.collect()
            counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    return blocks, counts


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
    with schedc.runtime.load(plan, stages=stages, loss_fn=lambda y, _: y.mean(), timeout_s=60) as pipe:
        total = pipe.step(list(batch), list(batch))
    expected = magnitude(batch.to(dtype)).mean()
    gradient = head.weight.grad
    return [*head.got, bool(torch.isclose(total, expected)), gradient is None or bool(torch.isclose(gradient.double(), expected))]


def refuse(
    rank: int,
    plans: Sequence[Any],
    stages: Sequence[Sequence[int]],
    seeds: Sequence[int] | None = None,
    own: Mapping[int, nn.Module] | None = None,
    **more: Any,
) -> str:
    """Load what is given for this rank, its own stages or such as are made from its seed; the refusal.

    `more` goes to `load`.
    """
    torch.manual_seed(seeds[rank] if seeds else 0)
    made = {stage: nn.Linear(2, 2) for stage in stages[rank]} if own is None else own
    try:
        pipe = schedc.runtime.load(plans[rank], stages=made, timeout_s=60, **{"loss_fn": loss_fn, **more})
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    dist.barrier()  # none is loading any more
    pipe.close()
    return "accepted"


class Failing(nn.Module):
    """A stage that ends its process, fails or gets stuck in its third forward."""

    def __init__(self, inner: nn.Module, way: str) -> None:
        super().__init__()
        self.inner = inner
        self.way = way
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            if self.way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.way == "exit":
                os._exit(1)
            if self.way == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            raise ValueError("this stage cannot go on")
        result: torch.Tensor = self.inner(x)
        return result


def fail(rank: int, plan: Plan, culprit: int, way: str, timeout_s: float) -> list[str]:
    """Train until one rank fails: this rank's error, the notes on it, and what a further step says."""
    stages = make_stages(plan, rank)
    if rank == culprit:
        stages = {stage: Failing(module, way) for stage, module in stages.items()}
    pipe = schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=timeout_s)
    said = []
    for step in range(2):
        try:
            pipe.step(*make_batch(plan, step))
        except Exception as error:
            said += [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    return said


class Ending(nn.Linear):
    """A stage whose process ends when its weights are first looked at."""

    def parameters(self, recurse: bool = True) -> Any:
        os._exit(1)


def load_without(rank: int, plan: Plan, culprit: int, comes: bool) -> str:
    """Load, but for one rank, which ends before it or in it: this rank's error."""
    if rank == culprit and not comes:
        os._exit(1)
    stages = {stage: Ending(1, 1) for stage in make_stages(plan, rank)} if rank == culprit else make_stages(plan, rank)
    try:
        schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60.0 if comes else 2.0)
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def world(rank: int) -> int:
    """The size of the group, to see that it is there."""
    return dist.get_world_size()


def refuse_without_loss(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, with no loss function given."""
    return refuse(rank, plans, stages, loss_fn=None)


def refuse_each(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]], options: Sequence[dict[str, Any]]) -> str:
    """`refuse`, with options of its own for each rank."""
    return refuse(rank, plans, stages, **options[rank])


def refuse_monitored(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, where rank 0 alone has a monitor."""
    return refuse(rank, plans, stages, observe=Observer() if rank else Monitor())


def refuse_sharing(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, where rank 1 would choose its order, and both have peers that would not know."""
    alone = [dist.new_group([0]), dist.new_group([1])]
    more: Any = {"kind": ChoosingPipe} if rank else {}
    return refuse(rank, plans, stages, swap_group=alone[rank], **more)


def refuse_built(rank: int, plans: Sequence[Any], sizes: Sequence[Sequence[int]]) -> str:
    """`refuse`, with stages of layers that have a width of this rank's sizes; 0: something that has no weights."""
    own = schedc.runtime.build_stages([nn.Linear(2, size) if size else nn.Identity() for size in sizes[rank]], plans[rank], rank)
    return refuse(rank, plans, [[], []], own=own)


def refuse_wide(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, where stage 0 is wider than the others."""
    return refuse(rank, plans, stages, own={stage: nn.Linear(2, 2 if stage else 3) for stage in stages[rank]})


def refuse_mirrored(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse` for a bidirectional plan, all stages with the same weights."""
    torch.manual_seed(0)
    weights = nn.Linear(2, 2).state_dict()
    own = {stage: nn.Linear(2, 2) for stage in stages[rank]}
    for module in own.values():
        module.load_state_dict(weights)
    schedc.runtime.load(plans[rank], stages=own, loss_fn=loss_fn, timeout_s=60).close()
    return "accepted"


def refuse_later(rank: int, plan: Plan) -> list[str]:
    """What steps after the first say to a batch that does not fit on rank 1."""
    said = []
    with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60) as pipe:
        inputs, targets = make_batch(plan, 0)
        pipe.step(inputs, targets)
        for _ in range(2):
            try:
                pipe.step(inputs[: 7 if rank == 1 else None], targets[: 7 if rank == 1 else None])
            except SchedcError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said

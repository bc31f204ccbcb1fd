"""What rank processes run in the tests of clipping, loss scaling and tied weights, beside the same on one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import schedc.runtime
from runs.harness import TOKENS, WIDTH, Descent, Layer, Run, load, loss_fn, make_batch, make_piece, make_stages, relative_error
from runs.replicated_runs import tie_pieces
from schedc.runtime.common.failure import NonFiniteLoss
from schedc.runtime.training.clipping import clip_grad_norm_
from schedc.runtime.training.scaling import GradScaler
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

NORMS = (2.0, 1.0, 3.0, float("inf"))


def clipping_error(run: Run, limit: float, p: float = 2.0, **options: Any) -> float:
    """Clip the gradients of both: the error of the norm."""
    expected = torch.nn.utils.clip_grad_norm_(run.whole_weights, limit, p)
    return relative_error(clip_grad_norm_(run.pipe, limit, p, **options), expected)


def clipped(rank: int, plan: Plan, tied: bool = False) -> list[float]:
    """Steps whose gradients are clipped by each norm: the errors of the norms and of the clipped gradients."""
    run = Run(plan)
    if tied:
        tie_pieces(run)
    errors = []
    with run.load():
        for step, p in enumerate(NORMS):
            run.clear()
            run.step(step)
            errors.append(clipping_error(run, 0.01 if step % 2 else 1e6, p))  # half of them are not clipped
            errors += run.gradient_errors()
    return errors


def clipped_not_finite(rank: int, plan: Plan) -> list[str]:
    """What a norm is, and what is raised, where one rank has a gradient that is not finite."""
    stages = make_stages(plan, rank)
    said = []
    with load(plan, stages) as pipe:
        pipe.step(*make_batch(plan, 0))
        if rank == 0:
            next(iter(stages[0].parameters())).grad.fill_(float("nan"))  # type: ignore[union-attr]
        said.append(str(clip_grad_norm_(pipe, 1e9).item()))
        said.append(str(clip_grad_norm_(pipe, 1e9, float("inf")).item()))
        try:
            clip_grad_norm_(pipe, 1.0, error_if_nonfinite=True)
        except NonFiniteLoss as error:
            said.append(str(error))
    return said


def scaled(rank: int, plan: Plan) -> dict[str, Any]:
    """Four steps with a scaler; the second overflows on rank 0 alone: scales, which steps moved weights, the weights' error."""
    run = Run(plan)
    scales, moved = [], []
    with run.load(check_loss=False) as pipe:
        optimizer: Any = Descent(run.weights)
        reference = Descent(run.whole_weights)
        scaler = GradScaler(pipe, init_scale=1024.0, growth_interval=2)
        for step in range(4):
            run.clear()
            before = [weight.detach().clone() for weight in run.weights]
            run.step(step, scale=scaler.get_scale())
            if step == 1 and rank == 0:
                next(weight.grad for weight in run.weights if weight.grad is not None).view(-1)[0] = float("inf")
            if step != 3:
                scaler.unscale_(optimizer)
                clip_grad_norm_(pipe, 1e6)
            scaler.step(optimizer)
            scaler.update()
            moved.append(any(not torch.equal(old, new) for old, new in zip(before, run.weights, strict=True)))
            scales.append(scaler.get_scale())
            if step != 1:
                reference.step()
        pipe.gather()
        return {"scales": scales, "moved": moved, "error": max(run.weight_errors())}


class Head(nn.Module):
    """A last piece with a copy of the embedding as its matrix."""

    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.inner = Layer().double()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) @ self.table.t()
        return result


def table_of(piece: nn.Module) -> nn.Parameter:
    """The weight of the embedding of a first piece."""
    weight = next(module for module in piece.modules() if isinstance(module, nn.Embedding)).weight
    assert isinstance(weight, nn.Parameter)
    return weight


def head_on(table: nn.Parameter) -> Head:
    """The last piece, always with the same weights besides the table."""
    torch.manual_seed(100)
    return Head(table)


def tied(rank: int, plan: Plan, each: int = 1) -> list[float]:
    """Training steps, of `each` steps of the pipe: the errors of gradients, norms and weights against the model with one table."""
    run, path = Run(plan), plan.problem.paths[0]
    pieces = list(run.whole)
    run.whole = [*pieces[:-1], head_on(table_of(pieces[0]))]
    held = {}
    if path[0] in run.stages:
        held["embedding"] = table_of(run.stages[path[0]])
    if path[-1] in run.stages:
        held["embedding"] = copy = nn.Parameter(table_of(make_piece(0, len(path))).detach().clone())
        run.stages[path[-1]] = head_on(copy)
    errors = []
    with run.load() as pipe:
        tie_weights(pipe, held)
        for step in range(2):
            run.clear()
            for part in range(each):
                run.step(10 * step + part)
            errors += [clipping_error(run, 0.5), *run.gradient_errors()]
            run.descend()
        return errors + run.weight_errors()


def refused_ties(rank: int, plan: Plan, way: str) -> str:
    """What `tie_weights` says to what cannot be tied."""
    run = Run(plan)
    first = next(iter(run.stages.values()))
    bias = next(weight for weight in first.parameters() if weight.dim() == 1)
    given = {"bias": bias}
    if way in {"alone", "one rank"} and rank:
        given = {}
    if way == "one rank":  # another module of it has the weight as well
        first.register_parameter("again", bias)
    if way == "foreign" and rank:
        given = {"bias": nn.Parameter(torch.zeros(2))}
    if way == "differs" and rank:
        with torch.no_grad():
            bias.add_(1)
    if way == "shape" and rank:
        given = {"bias": next(weight for weight in first.parameters() if weight.dim() == 2)}
    with run.load() as pipe:
        tie_weights(pipe, given)
    return "accepted"


class Marked(nn.Module):
    """A layer that gives the next one a tensor without a gradient as well."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, mark: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(x)
        return (y, torch.arange(3.0).to(y)) if mark is None else (y * mark[1], mark)


class Last(nn.Module):
    """Takes what they give."""

    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
        return x @ self.table.t() + mark[0]


def whole_tied() -> list[nn.Module]:
    """Six layers; the first and the last share a weight, and the second and the third."""
    torch.manual_seed(0)
    table = nn.Embedding(TOKENS, WIDTH)
    inner = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    inner[1].weight = inner[0].weight
    weight = table.weight
    assert isinstance(weight, nn.Parameter)
    return [layer.double() for layer in (Marked(table), *map(Marked, inner), Last(weight))]


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def tied_as_built(rank: int, plan: Plan, doubled: str = "") -> list[float]:
    """Steps of stages from `build_stages`, whose layers share weights and give tuples, and errors beside the model in one piece.

    The first layer's weight is `doubled` by a parametrization, before or after stages are made of it.
    """
    run, layers, whole = Run(plan), whole_tied(), whole_tied()
    for before in (layers, whole) if doubled == "before" else ():
        register_parametrization(before[0].get_submodule("inner"), "weight", Doubled())
    run.whole, run.stages = whole, dict(schedc.runtime.build_stages(layers, plan, run.rank))
    if doubled == "after":
        register_parametrization(layers[0].get_submodule("inner"), "weight", Doubled())
    errors = []
    with run.load() as pipe:
        for step in range(2):
            run.step(step)
            errors.append(clipping_error(run, 0.5))
            for stage, module in run.stages.items():
                first = plan.problem.stages[stage].layers[0]  # type: ignore[index]
                for at, layer in enumerate(module.children(), first):
                    for name, weight in layer.named_parameters():
                        errors.append(relative_error(weight.grad, whole[at].get_parameter(name).grad))
            table = layers[-1].get_parameter("table")
            tie_weights(pipe, {"table": table} if any(table is weight for weight in run.weights) else {})  # it is already
    return errors


def loss_without_a_graph(rank: int, plan: Plan) -> str:
    """What a step says whose loss does not depend on any weight."""
    with load(plan, make_stages(plan, rank), loss_fn=lambda y, t: loss_fn(y.detach(), t)) as pipe:
        pipe.step(*make_batch(plan, 0))
    return "accepted"

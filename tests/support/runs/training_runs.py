"""What rank processes run in the tests of clipping, loss scaling and tied weights, beside the same on one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import schedc.runtime
from runs.evaluation_runs import whole_model
from runs.pipeline_runs import TOKENS, WIDTH, Layer, loss_fn, make_batch, make_piece, make_stages, piece_of, relative_error
from runs.replicated_runs import grid, tie, whole_batch
from schedc.errors import SchedcError
from schedc.runtime.common.failure import NonFiniteLoss
from schedc.runtime.training.clipping import clip_grad_norm_
from schedc.runtime.training.scaling import GradScaler
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

NORMS = (2.0, 1.0, 3.0, float("inf"))


def clipped(rank: int, plan: Plan, tied: bool = False) -> list[float]:
    """Steps whose gradients are clipped by each norm: the errors of the norms and of the clipped gradients."""
    pipelines = dist.get_world_size() // plan.problem.ranks
    number, own = divmod(rank, plan.problem.ranks)
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    stages = make_stages(plan, own)
    pieces = dict(enumerate(whole_model(plan)))
    if tied:
        places = {piece_of(plan, stage): module for stage, module in stages.items()}
        tie(places, 0, len(pieces) - 1)
        stages = {stage: places[piece_of(plan, stage)] for stage in stages}
        tie(pieces, 0, len(pieces) - 1)
    whole = nn.ModuleList(pieces.values())
    errors = []
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
        zero_one = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
        mine = [shard.weight for shard in pipe.shards()] if zero_one else [w for m in stages.values() for w in m.parameters()]
        for step, p in enumerate(NORMS):
            inputs, targets = whole_batch(plan, pipelines, step)
            for weight in (*mine, *whole.parameters()):
                weight.grad = None
            pipe.step(inputs.chunk(pipelines)[number], targets.chunk(pipelines)[number])
            y = inputs
            for piece in pieces.values():
                y = piece(y)
            torch.autograd.backward(loss_fn(y, targets))
            limit = 0.01 if step % 2 else 1e6  # half of them are not clipped
            expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), limit, p)
            errors.append(relative_error(clip_grad_norm_(pipe, limit, p), expected))
            right = {(stage, name): w.grad for stage in stages for name, w in pieces[piece_of(plan, stage)].named_parameters()}
            if zero_one:
                for one in pipe.shards():
                    whole_grad = right[one.stage, one.name]
                    assert whole_grad is not None
                    errors.append(relative_error(one.weight.grad, whole_grad.flatten()[one.start : one.stop]))
            else:
                named = [(stage, *one) for stage, module in stages.items() for one in module.named_parameters()]
                errors += [relative_error(weight.grad, right[stage, name]) for stage, name, weight in named]
    return errors


def clipped_not_finite(rank: int, plan: Plan) -> list[str]:
    """What a norm is, and what is raised, where one rank has a gradient that is not finite."""
    stages = make_stages(plan, rank)
    said = []
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60) as pipe:
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


class Plain:
    """Descent, with what a scaler looks at; `torch.optim` takes seconds to load."""

    def __init__(self, weights: list[Any]) -> None:
        self.param_groups = [{"params": weights}]

    def step(self) -> None:
        with torch.no_grad():
            for weight in self.param_groups[0]["params"]:
                weight.sub_(weight.grad, alpha=0.1)


def scaled(rank: int, plan: Plan) -> dict[str, Any]:
    """Four steps with a scaler; the second overflows on rank 0 alone: scales, which steps moved weights, the weights' error."""
    pipelines = dist.get_world_size() // plan.problem.ranks
    number, own = divmod(rank, plan.problem.ranks)
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    stages = make_stages(plan, own)
    whole = whole_model(plan)
    scales, moved, errors = [], [], []
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, check_loss=False, **groups) as pipe:
        zero_one = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
        mine = [shard.weight for shard in pipe.shards()] if zero_one else [w for m in stages.values() for w in m.parameters()]
        optimizer: Any = Plain(mine)
        scaler = GradScaler(pipe, init_scale=1024.0, growth_interval=2)
        for step in range(4):
            inputs, targets = whole_batch(plan, pipelines, step)
            for weight in mine:
                weight.grad = None
            before = [weight.detach().clone() for weight in mine]
            pipe.step(inputs.chunk(pipelines)[number], targets.chunk(pipelines)[number], scale=scaler.get_scale())
            if step == 1 and rank == 0:
                next(weight.grad for weight in mine if weight.grad is not None).view(-1)[0] = float("inf")
            if step != 3:
                scaler.unscale_(optimizer)
                clip_grad_norm_(pipe, 1e6)
            scaler.step(optimizer)
            scaler.update()
            moved.append(any(not torch.equal(old, new) for old, new in zip(before, mine, strict=True)))
            scales.append(scaler.get_scale())
            if step != 1:
                whole.zero_grad()
                torch.autograd.backward(loss_fn(whole(inputs), targets))
                with torch.no_grad():
                    for weight in whole.parameters():
                        weight.sub_(weight.grad, alpha=0.1)  # type: ignore[arg-type]
        pipe.gather()
        for stage, module in stages.items():
            for weight, same in zip(module.parameters(), whole[piece_of(plan, stage)].parameters(), strict=True):
                errors.append(relative_error(weight.detach(), same.detach()))
    return {"scales": scales, "moved": moved, "error": max(errors)}


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
    pipelines = dist.get_world_size() // plan.problem.ranks
    number, own = divmod(rank, plan.problem.ranks)
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    path = plan.problem.paths[0]
    stages = make_stages(plan, own)
    pieces = list(whole_model(plan))
    pieces[-1] = head_on(table_of(pieces[0]))
    whole = nn.ModuleList(pieces)
    held = {}
    if path[0] in stages:
        held["embedding"] = table_of(stages[path[0]])
    if path[-1] in stages:
        copy = nn.Parameter(table_of(make_piece(0, len(path))).detach().clone())
        stages[path[-1]] = head_on(copy)
        held["embedding"] = copy
    errors = []
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
        tie_weights(pipe, held)
        mine = [weight for module in stages.values() for weight in module.parameters()]
        for step in range(2):
            for weight in (*mine, *whole.parameters()):
                weight.grad = None
            for part in range(each):
                inputs, targets = whole_batch(plan, pipelines, 10 * step + part)
                pipe.step(inputs.chunk(pipelines)[number], targets.chunk(pipelines)[number])
                y = inputs
                for piece in pieces:
                    y = piece(y)
                torch.autograd.backward(loss_fn(y, targets))
            expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
            errors.append(relative_error(clip_grad_norm_(pipe, 0.5), expected))
            with torch.no_grad():
                for stage, module in stages.items():
                    for name, weight in module.named_parameters():
                        errors.append(relative_error(weight.grad, pieces[piece_of(plan, stage)].get_parameter(name).grad))
                for weight in (*mine, *whole.parameters()):
                    weight.sub_(weight.grad, alpha=0.1)  # type: ignore[arg-type]
        for stage, module in stages.items():
            for name, weight in module.named_parameters():
                errors.append(relative_error(weight.detach(), pieces[piece_of(plan, stage)].get_parameter(name).detach()))
    return errors


def refused_ties(rank: int, plan: Plan, way: str) -> str:
    """What `tie_weights` says to what cannot be tied."""
    pipelines = dist.get_world_size() // plan.problem.ranks
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    stages = make_stages(plan, rank % plan.problem.ranks)
    biases = [next(weight for weight in module.parameters() if weight.dim() == 1) for module in stages.values()]
    given = {"bias": biases[0]}
    if way in {"alone", "one rank"} and rank:
        given = {}
    if way == "one rank":  # another module of it has the weight as well
        next(iter(stages.values())).register_parameter("again", biases[0])
    if way == "foreign" and rank:
        given = {"bias": nn.Parameter(torch.zeros(2))}
    if way == "differs" and rank:
        with torch.no_grad():
            biases[0].add_(1)
    if way == "shape" and rank:
        given = {"bias": next(weight for weight in next(iter(stages.values())).parameters() if weight.dim() == 2)}
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
            tie_weights(pipe, given)
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
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


def tied_as_built(rank: int, plan: Plan, doubled: str = "") -> list[float] | str:
    """Steps of stages from `build_stages`, whose layers share weights and give tuples, and errors beside the model in one piece.

    The first layer's weight is `doubled` by a parametrization, before or after stages are made of it.
    """
    pipelines = dist.get_world_size() // plan.problem.ranks
    groups: Any = {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, plan.problem.ranks), strict=True))
    number, own = divmod(rank, plan.problem.ranks)
    layers, whole = whole_tied(), whole_tied()
    everything = nn.ModuleList(whole)
    for before in (layers, whole) if doubled == "before" else ():
        register_parametrization(before[0].get_submodule("inner"), "weight", Doubled())
    stages = schedc.runtime.build_stages(layers, plan, own)
    if doubled == "after":
        register_parametrization(layers[0].get_submodule("inner"), "weight", Doubled())
    errors = []
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
            for step in range(2):
                inputs, targets = whole_batch(plan, pipelines, step)
                pipe.step(inputs.chunk(pipelines)[number], targets.chunk(pipelines)[number])
                values: Any = (inputs,)
                for layer in whole:
                    values = layer(*values)
                torch.autograd.backward(loss_fn(values, targets))
                norm = torch.nn.utils.clip_grad_norm_(everything.parameters(), 0.5)
                errors.append(relative_error(clip_grad_norm_(pipe, 0.5), norm))
                for stage, module in stages.items():
                    first = plan.problem.stages[stage].layers[0]  # type: ignore[index]
                    for at, layer in enumerate(module, first):
                        for name, weight in layer.named_parameters():
                            errors.append(relative_error(weight.grad, whole[at].get_parameter(name).grad))
                table = layers[-1].get_parameter("table")
                mine = [weight for module in stages.values() for weight in module.parameters()]
                tie_weights(pipe, {"table": table} if any(table is weight for weight in mine) else {})  # it is already
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return errors


def loss_without_a_graph(rank: int, plan: Plan) -> str:
    """What a step says whose loss does not depend on any weight."""
    try:
        with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=lambda y, t: loss_fn(y.detach(), t)) as pipe:
            pipe.step(*make_batch(plan, 0))
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"

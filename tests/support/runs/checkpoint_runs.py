"""What rank processes run in the tests of checkpoints: training that goes on under another plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.loss_module_runs import Tempered
from runs.pipeline_runs import TOKENS, WIDTH, Layer, loss_fn, make_batch, relative_error
from runs.replicated_runs import grid
from schedc.errors import SchedcError
from schedc.runtime.replicas.copies import weights_digest
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.session.pipe import Pipe

COUNT = 6


def layers(seed: int) -> list[nn.Module]:
    """A whole model, with a buffer that training changes."""
    torch.manual_seed(seed)
    made = [nn.Embedding(TOKENS, WIDTH), *(Layer() for _ in range(COUNT - 2)), nn.Linear(WIDTH, TOKENS)]
    return [layer.double() for layer in made]


def optimizer_of(weights: list[nn.Parameter], kind: str) -> Any:
    """What is saved as well."""
    return torch.optim.AdamW(weights, lr=0.05) if kind == "adamw" else torch.optim.SGD(weights, lr=0.1, momentum=0.9)


def steps_beside(
    pipe: Pipe, optimizer: Any, whole: nn.Sequential, reference: Any, batches: range, loss_fn: Any = loss_fn
) -> list[float]:
    """A step of the pipe and of the whole model on each of these batches: the errors of this rank's weights after them."""
    for number in batches:
        inputs, targets = make_batch(pipe.plan, number)
        for one in (optimizer, reference):
            one.zero_grad()
        pipe.step(inputs, targets)
        torch.autograd.backward(loss_fn(whole(inputs), targets))
        optimizer.step()
        reference.step()
    errors = []
    for stage, module in pipe.stages.items():
        bounds = pipe.plan.problem.stages[stage].layers
        assert bounds is not None
        same = whole[slice(*bounds)].parameters()
        errors += [relative_error(one.detach(), two.detach()) for one, two in zip(module.parameters(), same, strict=True)]
    return errors


def trained(rank: int, plans: list[Plan], path: str) -> float | str:
    """Three steps under each plan in turn, by a checkpoint between two: the error of the weights against one that never stopped.

    A plan of two ranks is run by two pipelines of the four processes, one of four by all.
    """
    whole = nn.Sequential(*layers(0))
    reference = optimizer_of(list(whole.parameters()), "adamw")
    errors: list[float] = []
    for number, plan in enumerate(plans):
        ranks = plan.problem.ranks
        pipelines = dist.get_world_size() // ranks
        groups: Any = {}
        if pipelines > 1:
            groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, ranks), strict=True))
        stages = schedc.runtime.build_stages(layers(number), plan, rank % ranks)
        optimizer = optimizer_of([weight for module in stages.values() for weight in module.parameters()], "adamw")
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
            if number:
                load_checkpoint(pipe, f"{path}/{number - 1}", optimizer)
            errors += steps_beside(pipe, optimizer, whole, reference, range(3 * number, 3 * number + 3))
            save_checkpoint(pipe, f"{path}/{number}", optimizer)
        dist.barrier()
    return max(errors)


class Unused(Layer):
    """A layer with a weight that no step gives a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


def tied_layers() -> list[nn.Module]:
    """A whole model whose last layer has the weight of its first."""
    torch.manual_seed(0)
    made = [nn.Embedding(TOKENS, WIDTH), *(Unused() for _ in range(COUNT - 2)), nn.Linear(WIDTH, TOKENS)]
    made[-1].weight = made[0].weight
    return [layer.double() for layer in made]


def odd_weights(rank: int, plans: list[Plan], path: str) -> float | str:
    """Two steps under each plan in turn, by a checkpoint between two: tied weights, some without a gradient, one of the loss.

    Gives the error of the weights against a model that never stopped; a line where loading into an optimizer without the state of a
    weight is not refused.
    """
    whole, tempered = nn.Sequential(*tied_layers()), Tempered()
    reference = optimizer_of([*whole.parameters(), *tempered.parameters()], "adamw")
    errors: list[float] = []
    for number, plan in enumerate(plans):
        stages = schedc.runtime.build_stages(tied_layers(), plan, rank)
        own, ends = Tempered(), plan.problem.paths[0][-1] in stages
        mine = list(dict.fromkeys(weight for module in stages.values() for weight in module.parameters()))
        optimizer = optimizer_of([*mine, *own.parameters()] if ends else mine, "adamw")
        with schedc.runtime.load(plan, stages=stages, loss_fn=own, timeout_s=60) as pipe:
            if number:
                load_checkpoint(pipe, f"{path}/{number - 1}", optimizer)
            errors += steps_beside(pipe, optimizer, whole, reference, range(2 * number, 2 * number + 2), tempered)
            errors.append(relative_error(own.temperature.detach(), tempered.temperature.detach()) if ends else 0.0)
            save_checkpoint(pipe, f"{path}/{number}", optimizer)
            del optimizer.state[next(iter(optimizer.state))]
            try:
                load_checkpoint(pipe, f"{path}/{number}", optimizer)
            except SchedcError as error:
                assert "of which the optimizer has none; load into a new optimizer" in str(error), error
            else:
                return "loaded, without the state of a weight"
    return max(errors)


def refused(rank: int, plan: Plan, way: str, path: str) -> str:
    """What `load_checkpoint` says to what does not fit; weights stay as they were."""
    ranks = plan.problem.ranks
    groups: Any = {}
    if dist.get_world_size() > ranks:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(dist.get_world_size() // ranks, ranks), strict=True))
    stages: Any = schedc.runtime.build_stages(layers(0), plan, rank % ranks)
    if way == "shape":
        for module in stages.values():
            for layer in module:
                if isinstance(layer, Layer):
                    layer.up = nn.Linear(WIDTH, 3 * WIDTH).double()
                    layer.down = nn.Linear(3 * WIDTH, WIDTH).double()
    if way == "float32":
        for module in stages.values():
            module.float()
    if way == "stages":
        stages = {stage: nn.ModuleList([module])[0] if stage else nn.Sequential(module) for stage, module in stages.items()}
    weights = [weight for module in stages.values() for weight in module.parameters()]
    before = [weight.detach().clone() for weight in weights]
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, **groups) as pipe:
            if way == "twice":
                save_checkpoint(pipe, path)
            model = nn.ModuleDict() if way == "model" else None
            load_checkpoint(pipe, path, optimizer_of(weights, "sgd") if way == "optimizer" else None, model=model)
            pipe.gather()
    except SchedcError as error:
        assert way == "changed" or all(map(torch.equal, before, weights))
        return f"{type(error).__name__}: {error}"
    return f"loaded {[weights_digest(module) for module in stages.values()]}"

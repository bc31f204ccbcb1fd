"""What rank processes run in the tests of checkpoints: training that goes on under another plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

import schedc.runtime
from runs.harness import TOKENS, WIDTH, Layer, Run, grid, load, loss_fn, make_batch, noting, relative_error, weights_of
from runs.loss_runs import Tempered
from schedc.errors import SchedcError
from schedc.runtime.replicas.copies import weights_digest
from schedc.runtime.training.checkpoint import last_checkpoint, load_checkpoint, save_checkpoint
from schedc.runtime.training.model_state import layers_of

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.session.pipe import Pipe

COUNT = 6


def layers(seed: int) -> list[nn.Module]:
    """A whole model, with a buffer that training changes."""
    torch.manual_seed(seed)
    made = [nn.Embedding(TOKENS, WIDTH), *(Layer() for _ in range(COUNT - 2)), nn.Linear(WIDTH, TOKENS)]
    return [layer.double() for layer in made]


def run_of(plan: Plan, layers: list[nn.Module]) -> Run:
    """A run of the plan with stages of these layers."""
    run = Run(plan)
    run.stages = dict(schedc.runtime.build_stages(layers, plan, run.rank))
    return run


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
        run = run_of(plan, layers(number))
        optimizer = optimizer_of(weights_of(run.stages), "adamw")
        with run.load() as pipe:
            if number:
                load_checkpoint(pipe, f"{path}/{number - 1}", optimizer, convert=True)
            errors += steps_beside(pipe, optimizer, whole, reference, range(3 * number, 3 * number + 3))
            save_checkpoint(pipe, f"{path}/{number}", optimizer)
        dist.barrier()
    return max(errors)


class Loader:
    """What a job has besides."""

    def __init__(self, at: int) -> None:
        self.at = [at]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.at = state_dict["at"]


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
        run, own = run_of(plan, tied_layers()), Tempered()
        ends = plan.problem.paths[0][-1] in run.stages
        optimizer = optimizer_of([*weights_of(run.stages), *(own.parameters() if ends else ())], "adamw")
        with run.load(loss_fn=own) as pipe:
            if number:
                load_checkpoint(pipe, f"{path}/{number - 1}", optimizer, convert=True)
            errors += steps_beside(pipe, optimizer, whole, reference, range(2 * number, 2 * number + 2), tempered)
            errors.append(relative_error(own.temperature.detach(), tempered.temperature.detach()) if ends else 0.0)
            save_checkpoint(pipe, f"{path}/{number}", optimizer)
            del optimizer.state[next(iter(optimizer.state))]
            lines = list[str]()
            with noting(lines):
                load_checkpoint(pipe, f"{path}/{number}", optimizer)
            if not lines:
                return "loaded, without the state of a weight"
            assert "of which the optimizer has none; load into a new optimizer" in lines[0], lines
    return max(errors)


def refused(rank: int, plan: Plan, way: str, path: str) -> str:
    """What `load_checkpoint` says to what does not fit; weights stay as they were."""
    run = run_of(plan, layers(0))
    stages: Any = run.stages
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
        run.stages = stages = {stage: module if stage else nn.Sequential(module) for stage, module in stages.items()}
    weights = weights_of(stages)
    before = [weight.detach().clone() for weight in weights]
    try:
        with run.load() as pipe:
            if way == "twice":
                save_checkpoint(pipe, path)
            if way == "pipeline":
                other = optimizer_of([nn.Parameter(torch.ones(1))], "sgd")
                save_checkpoint(pipe, f"{path}/new", other if (run.pipeline, run.rank) == (1, 0) else optimizer_of(weights, "sgd"))
            if way == "none":
                save_checkpoint(pipe, f"{path}/new", optimizer_of(weights, "sgd") if (run.pipeline, run.rank) != (1, 0) else None)
            if way == "apart":
                save_checkpoint(pipe, f"{path}/new", job={"loader": Loader(run.rank)})
            if way == "empty":
                save_checkpoint(pipe, f"{path}/new", optimizer_of(weights, "sgd") if run.rank else [])
            if way == "mixed":
                save_checkpoint(pipe, f"{path}/new", beside=(run.pipeline, run.rank) == (1, 0))
            model = nn.ModuleDict() if way == "model" else None
            optimizer = optimizer_of(weights, "sgd") if way == "optimizer" else None
            job = {"loader": Loader(0)} if way == "job" else {}
            load_checkpoint(pipe, path, optimizer, model=model, convert=way != "layout", job=job)
            pipe.gather()
    except SchedcError:
        assert way == "changed" or all(map(torch.equal, before, weights))
        raise
    return f"loaded {[weights_digest(module) for module in stages.values()]}"


def bare(rank: int, plan: Plan, path: str) -> tuple[int, bool]:
    """A checkpoint of weights alone, as torch writes it: how many steps have been made then, and whether weights are its own."""
    found = []
    for seed in (0, 1):
        run = run_of(plan, layers(seed))
        with run.load(first_step=4) as pipe:
            if seed:
                found.append(load_checkpoint(pipe, path))
            else:
                save({"model": get_model_state_dict(layers_of(pipe))}, checkpoint_id=path)
                saved = [weight.detach().clone() for weight in weights_of(run.stages)]
    return found[0], all(map(torch.equal, saved, weights_of(run.stages)))


def beside(rank: int, plan: Plan, path: str) -> list[str]:
    """Checkpoints written beside steps: which is the last whole one, and whether it has the weights of the moment that it was made.

    Then lines: of folders that are not the same on all ranks, to load from and to save in; of one that is loaded before it is
    whole, of one that cannot be written at once, of one that cannot beside steps, of which the next save tells, of one after that,
    and of the last, of which the end of the pipe tells.
    """
    said, lines = list[str](), list[str]()
    run = run_of(plan, layers(0))
    optimizer = optimizer_of(weights_of(run.stages), "adamw")
    with noting(lines), run.load() as pipe:

        def step(number: int) -> None:
            optimizer.zero_grad()
            pipe.step(*make_batch(plan, number))
            optimizer.step()

        for number in (9, 10):
            step(number)
            then = [weight.detach().clone() for weight in weights_of(run.stages)]
            loader = Loader(number)
            writing = save_checkpoint(pipe, f"{path}/step-{number}", optimizer, beside=True, job={"loader": [loader, Loader(0)]})
            drawn = torch.rand(3)
            assert pipe.gate().users == 1 or writing.done
            step(0)
        writing.wait()
        assert writing.done
        dist.barrier()
        torch.save({}, f"{path}/half-{rank}.distcp")  # as a job leaves it that is killed
        last = last_checkpoint(path)
        assert last is not None
        said.append(last[1].name)
        loaders = [Loader(0) for _ in range(2)]
        assert load_checkpoint(pipe, last[1], optimizer, job={"loader": loaders}) == 3
        assert torch.equal(torch.rand(3), drawn)
        assert [loader.at for loader in loaders] == [[10], [10]]
        with noting(lines):
            load_checkpoint(pipe, f"{path}/step-{9 + rank}", optimizer)
        said.append(str(all(map(torch.equal, then, weights_of(run.stages)))))
        with noting(lines):
            save_checkpoint(pipe, f"{path}/of-{rank}", optimizer, beside=True)
        with noting(lines):
            load_checkpoint(pipe, path, optimizer)
        write, full = FileSystemWriter.write_data, rank == 1

        def write_data(self: Any, *given: Any) -> Any:
            if full and self.path.name in ("at-once", "step-11", "step-14"):
                raise OSError("No space left on device")
            return write(self, *given)

        FileSystemWriter.write_data = write_data  # type: ignore[method-assign,assignment]
        with noting(lines):
            save_checkpoint(pipe, f"{path}/at-once", optimizer)
        save_checkpoint(pipe, f"{path}/step-11", optimizer, beside=True)
        with noting(lines):
            save_checkpoint(pipe, f"{path}/step-12", optimizer, beside=True)
        save_checkpoint(pipe, f"{path}/step-13", optimizer, beside=True)
        save_checkpoint(pipe, f"{path}/step-14", optimizer, beside=True)
    last = last_checkpoint(path)
    assert last is not None
    return [*said, *lines, last[1].name]


def beside_moves(process: int, plans: list[Plan], path: str, way: str, *, resumes: bool = False) -> Any:
    """Ten steps of two pipelines that move to the second plan and back, while checkpoints are written slowly beside them.

    Args:
        process: this one.
        plans: both.
        path: where they are written.
        way: `data_parallel_group` or `swap_group`.
        resumes: load the last one, of step 8, and go on with the first plan; else write them.

    Returns:
        The losses from step 8 on; of each move the state; of each checkpoint, whether it has what there was when it was made.
    """
    ranks = plans[0].problem.ranks
    pipeline, peers = grid(2, ranks)
    zero = plans[0].problem.data_parallel is not None and plans[0].problem.data_parallel.zero_stage == 1
    write = FileSystemWriter.write_data

    def write_data(self: Any, *given: Any) -> Any:
        time.sleep(0.2)
        return write(self, *given)

    FileSystemWriter.write_data = write_data  # type: ignore[method-assign,assignment]
    losses, moves, kept, given = list[float](), list[Any](), dict[str, Any](), {"pipeline_group": pipeline, way: peers}
    stages = dict(schedc.runtime.build_stages(layers(int(resumes)), plans[0], pipeline.rank()))
    with load(plans[0], stages, **given) as pipe:
        weights: Any = [shard.weight for shard in pipe.shards()] if zero else weights_of(stages)
        optimizer = optimizer_of(weights, "adamw")
        if resumes:
            last = last_checkpoint(path)
            assert last is not None and last[0] == 8
            load_checkpoint(pipe, last[1], optimizer)
        for step in range(8 if resumes else 0, 10):
            at = step - process % 2  # ranks offer at different steps
            if at in (2, 6) and not resumes:
                moves.append(pipe.swap(plans[1 if at == 2 else 0]))
            optimizer.zero_grad()
            parts = 2 if way == "data_parallel_group" else 1
            batch = [each.chunk(parts)[peers.rank() % parts] for each in make_batch(plans[0], step, parts)]
            losses.append(pipe.step(*batch).item())
            optimizer.step()
            if step in (1, 3, 4, 7) and not resumes:
                save_checkpoint(pipe, f"{path}/step-{step + 1}", optimizer, beside=True)
                pipe.gather()
                kept[f"step-{step + 1}"] = [weight.detach().clone() for weight in weights_of(stages)]
    FileSystemWriter.write_data = write  # type: ignore[method-assign]
    if resumes:
        return losses
    found = []
    stages = dict(schedc.runtime.build_stages(layers(1), plans[1], pipeline.rank()))
    with load(plans[1], stages, **given) as pipe:
        for name, then in kept.items():
            load_checkpoint(pipe, f"{path}/{name}")
            found.append(all(map(torch.equal, then, weights_of(stages))))
    return losses[8:], [move.state for move in moves], found

"""What rank processes run in the tests of steps that overlap where something changes: rates, weights, checkpoints, plans.

`errors` is in `asynchronous_runs`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from runs.asynchronous_runs import Way, optimizers_of, oracle_of, trained, weight_errors
from runs.harness import load, loss_fn, make_batch, make_stages, noting, relative_error, weights_of
from schedc.ir import Versions
from schedc.lower.run import run_of
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schedc.ir import Plan
    from schedc.runtime.session.pipe import Pipe


def scheduled(rank: int, plan: Plan) -> list[float]:
    """As `errors`, with learning rates that halve after each update, beside a correction of them."""
    run, way = run_of(plan, 4), Way(slow=3)
    stages, oracle = make_stages(run, rank), oracle_of(run, way)
    optimizers = optimizers_of(stages, way)
    for optimizer in (*optimizers.all, *oracle.optimizers):
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if optimizer in oracle.optimizers:
            oracle.schedules.append(schedule)
        else:
            optimizer.register_step_post_hook(lambda *_, schedule=schedule: schedule.step())
    with load(run, stages, optimizers=optimizers) as pipe:
        return trained(pipe, oracle, 0) + trained(pipe, oracle, 1)


def partly_frozen(rank: int, plan: Plan, path: str) -> list[float]:
    """As `errors`, where nothing of stage 0 is trained, so that it has no optimizer; with a checkpoint between two runs."""
    run, way = run_of(plan, 4), Way()
    stages, oracle = make_stages(run, rank), oracle_of(run, way)
    oracle.optimizers[0] = torch.optim.SGD(oracle.pieces[0].parameters(), lr=0)
    if rank == 0:
        stages[0].requires_grad_(False)
    given = optimizers_of({stage: module for stage, module in stages.items() if stage}, way)
    given.skip_nonfinite, given.per_stage = True, plan.problem.updates.versions is not Versions.TWO_BUFFERED  # type: ignore[union-attr]
    model, optimizers = nn.ModuleDict({str(stage): module for stage, module in stages.items()}), given.all
    with load(run, stages, optimizers=given) as pipe:
        found = trained(pipe, oracle, 0)
        save_checkpoint(pipe, path, optimizers, model=model)
        with torch.no_grad():
            for weight in weights_of(stages):
                weight.fill_(0.1)
        load_checkpoint(pipe, path, optimizers, model=model)
        return found + trained(pipe, oracle, 1)


def changing(rank: int, plan: Plan, change: str) -> str | list[float]:
    """A run with a frozen weight in each optimizer, and one after a change on rank 1: what is said, or the errors."""
    run, lines = run_of(plan, 4), list[str]()
    stages, oracle = make_stages(run, rank), oracle_of(run, Way())
    frozen = [next(stages[rank].parameters()), *(next(piece.parameters()) for piece in oracle.pieces)]
    for weight in frozen:
        weight.requires_grad_(False).grad = torch.ones_like(weight)  # left by steps before it was frozen
    for optimizer in oracle.optimizers:
        optimizer.zero_grad()
    given = optimizers_of(stages, Way(max_norm=0.05, per_stage=True))
    oracle.max_norm, oracle.per_stage = 0.05, True
    with noting(lines), load(run, stages, optimizers=given) as pipe:
        found = trained(pipe, oracle, 0)
        assert list(given.all[0].param_groups[0]["params"]) == [*stages[rank].parameters()]
        if change == "frozen":
            for module in (oracle.pieces[1], *([stages[1]] if rank == 1 else [])):
                module.requires_grad_(False)
            return found + trained(pipe, oracle, 1)
        if change == "unfrozen":
            for weight in frozen:
                weight.requires_grad_(True)
            return found + trained(pipe, oracle, 1)
        if rank == 1:
            name, weight = [*stages[rank].named_parameters()][1]
            place, _, own = name.rpartition(".")
            setattr(stages[rank].get_submodule(place), own, nn.Parameter(weight.detach().clone()))
        pipe.step(*make_batch(run, 1))
        return found
    return lines[0]


def skipping(rank: int, plan: Plan, *, per_stage: bool, skips: bool = True, step: int = 2) -> list[float]:
    """A run in which the loss of a microbatch of a step is infinite: errors of the weights, if that step makes no update."""
    run = run_of(plan, 6)
    count, numbers = plan.problem.microbatches, iter(range(run.problem.microbatches))

    def infinite(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_fn(logits, targets) * (math.inf if next(numbers) == step * count else 1)

    stages = make_stages(run, rank)
    given = optimizers_of(stages, Way(), skip_nonfinite=skips, loss_scale=8.0)
    given.per_stage = per_stage
    oracle = oracle_of(run, Way())
    oracle.skipped = [step]
    with load(run, stages, optimizers=given, loss_fn=infinite) as pipe:
        batch = make_batch(run, 0)
        losses = pipe.step(*batch)
        oracle.run(*(each.chunk(run.problem.microbatches) for each in batch))
    assert not math.isfinite(losses[step])
    return weight_errors(stages, oracle.pieces)


def resumed(rank: int, plan: Plan, path: str, optimizer: str = "adamw") -> list[float]:
    """A run, an evaluation and a checkpoint; then other modules, which load it, and a run: errors against two runs in one go."""
    run, way = run_of(plan, 3), Way(optimizer, slow=5)
    oracle, found = oracle_of(run, way), []
    for number in range(2):
        stages = make_stages(run, rank)
        if number:
            with torch.no_grad():
                for weight in weights_of(stages):
                    weight.fill_(0.1)
        given = optimizers_of(stages, way)
        optimizers = given.all
        model = nn.ModuleDict({str(stage): module for stage, module in stages.items()})
        with load(run, stages, optimizers=given) as pipe:
            if number:
                load_checkpoint(pipe, path, optimizers, model=model)
            assert given.updates == 3 * number
            found += trained(pipe, oracle, number)
            inputs, targets = make_batch(run, 7)
            logits = inputs
            for piece in oracle.pieces:
                logits = piece(logits)
            found.append(relative_error(pipe.evaluate(inputs, targets), loss_fn(logits, targets).detach()))
            if not number:  # beside a run that is not in it
                writing = save_checkpoint(pipe, path, optimizers, model=model, beside=True)
                pipe.step(inputs, targets)
                writing.wait()
    return found


def switching(rank: int, plan: Plan, synchronous: Plan) -> list[float]:
    """A job that moves from runs to a synchronous plan and back, by swaps and by loading again: errors of its weights."""
    run, way = run_of(plan, 3), Way("adamw")
    stages, found = make_stages(run, rank), []
    given, oracle = optimizers_of(stages, way), oracle_of(run, way)

    def step_together(pipe: Pipe, number: int, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        inputs, targets = make_batch(synchronous, number)
        pipe.step(inputs, targets)
        logits = inputs
        for piece in oracle.pieces:
            logits = piece(logits)
        torch.autograd.backward(loss_fn(logits, targets))
        for each in (*optimizers, *oracle.optimizers):
            each.step()
            each.zero_grad()
        found.extend(weight_errors(stages, oracle.pieces))

    def moved(pipe: Pipe, other: Plan, act: Callable[[int], object]) -> None:
        swap = pipe.swap(other)
        for number in range(2):
            if swap.state == "pending":
                act(number)
        assert (swap.state, pipe.plan) == ("done", other), swap.reason

    with load(run, stages, optimizers=given) as pipe:
        moved(pipe, synchronous, lambda number: found.extend(trained(pipe, oracle, number)))
        step_together(pipe, 2, given.all)
        moved(pipe, run, lambda number: step_together(pipe, 3 + number, given.all))
        found += trained(pipe, oracle, 5)
    with load(synchronous, stages) as pipe:
        step_together(pipe, 6, given.all)
    with load(run, stages, optimizers=given) as pipe:
        found += trained(pipe, oracle, 7)
    return found

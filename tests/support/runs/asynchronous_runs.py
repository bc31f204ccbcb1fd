"""What rank processes run in the tests of steps that overlap: runs of a plan beside one process that applies the same delays."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from oracles.delayed_updates import DelayedTraining
from torch import nn

import schedc.runtime
from runs.harness import (
    Orders,
    cannot_go_on,
    grid,
    load,
    loss_fn,
    make_batch,
    make_stages,
    noting,
    on_forward,
    relative_error,
    weights_of,
    whole_model,
)
from schedc.ir import Versions, token
from schedc.lower.run import run_of
from schedc.runtime.adapt.memory_pressure import MemoryWatch
from schedc.runtime.asynchronous.corrections import Correction, ReducedRate, WeightPrediction
from schedc.runtime.asynchronous.optimizers import StageOptimizers
from schedc.runtime.asynchronous.weights import StageWeights
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.replicas.copies import digest_of
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from schedc.ir import Plan
    from schedc.runtime.adapt.memory_pressure import PressureEvent
    from schedc.runtime.session.pipe import Pipe

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "nadam": partial(torch.optim.NAdam, lr=0.01, betas=(0.99, 0.999)),
}


def muon_beside_adamw(weights: Iterable[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest, as users have it."""
    given = [*weights]
    matrices, others = [one for one in given if one.dim() == 2], [one for one in given if one.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.01)]


class Joint:
    """Several optimizers as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    def step(self) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self) -> None:
        for one in self.optimizers:
            one.zero_grad()


class Way(NamedTuple):
    """How a plan is run."""

    optimizer: str = "momentum"
    max_norm: float = math.inf
    per_stage: bool = False
    recompute: bool = False
    predicts: bool = False
    slow: int = 0
    """K of PipeMare's learning rate; 0: as it is."""


def optimizers_of(stages: dict[int, nn.Module], way: Way, **options: Any) -> StageOptimizers:
    """Those of a rank."""
    corrections: list[Correction] = [WeightPrediction()] if way.predicts else []
    if way.slow:
        corrections.append(ReducedRate(way.slow))
    return StageOptimizers(
        {stage: of_weights(way, module.parameters()) for stage, module in stages.items()},
        max_norm=way.max_norm,
        per_stage=way.per_stage,
        corrections=corrections,
        **options,
    )


def of_weights(way: Way, weights: Iterable[nn.Parameter]) -> Any:
    """An optimizer, or several."""
    return muon_beside_adamw(weights) if way.optimizer == "muon and adamw" else OPTIMIZERS[way.optimizer](weights)


def pipemare(updates: int, rate: float, delay: int, number: int) -> float:
    """PipeMare's learning rate, as in the paper."""
    return rate if delay == 0 or number >= updates else rate * math.pow(delay, number / updates - 1)


def oracle_of(run: Plan, way: Way) -> DelayedTraining:
    """One process that applies the same delays."""
    return DelayedTraining(
        run,
        [*whole_model(run)],
        loss_fn,
        lambda _, weights: Joint(muon_beside_adamw(weights)) if "and" in way.optimizer else of_weights(way, weights),
        recompute=[at for at, stage in enumerate(run.problem.stages) if way.recompute or stage.recompute],
        max_norm=way.max_norm,
        per_stage=way.per_stage,
        predicts=way.predicts,
        rate_of=partial(pipemare, way.slow) if way.slow else None,
    )


def trained(pipe: Pipe, oracle: DelayedTraining, number: int) -> list[float]:
    """A run of the pipe's plan, and of the oracle: the relative errors of losses and of this rank's weights."""
    oracle.plan, steps = pipe.plan, pipe.plan.problem.microbatches
    batch = make_batch(pipe.plan, number)
    losses = pipe.step(*batch)
    expected = oracle.run(*(each.chunk(steps) for each in batch))
    assert all(weight.grad is None for weight in weights_of(pipe.stages))
    found = [relative_error(pipe.losses, expected), relative_error(losses, expected.reshape(len(losses), -1).mean(1))]
    return found + weight_errors(pipe.stages, oracle.pieces)


def weight_errors(stages: Mapping[int, nn.Module], pieces: Sequence[nn.Module]) -> list[float]:
    """The relative errors of this rank's weights."""
    return [
        relative_error(one.detach(), two.detach())
        for stage, module in stages.items()
        for one, two in zip(module.parameters(), pieces[stage].parameters(), strict=True)
    ]


def errors(rank: int, plan: Plan, way: Way, steps: Sequence[int]) -> list[float]:
    """Runs of this many steps each, one after the other: the relative errors of each."""
    run = run_of(plan, steps[0])
    stages, found = make_stages(run, rank), []
    optimizers, oracle = optimizers_of(stages, way), oracle_of(run, way)
    for number, count in enumerate(steps):
        with load(plan, stages, steps=count, optimizers=optimizers, recompute=way.recompute) as pipe:
            found += trained(pipe, oracle, number)
    return found


def replicated(
    rank: int, plan: Plan, way: Way, steps: Sequence[int], size: int = 2, slow_s: float = 0, infinite: int | None = None
) -> list[float]:
    """As `errors`, of pipelines that each have a part of each microbatch: errors of the steps' losses and of weights.

    Args:
        rank: of the process.
        plan: of one pipeline.
        way: how it is run.
        steps: of each run.
        size: how many ranks a pipeline has.
        slow_s: by how much the last rank of the last pipeline is slower in each forward.
        infinite: the step of the first run that has an infinite loss, in that pipeline alone, and makes no update.
    """
    pipelines, number, own = dist.get_world_size() // size, rank // size, rank % size
    pipeline_group, data_group = grid(pipelines, size)
    groups = {"pipeline_group": pipeline_group, "data_parallel_group": data_group}
    run = run_of(plan, steps[0])
    stages, found = make_stages(run, own), list[float]()
    optimizers, oracle = optimizers_of(stages, way, skip_nonfinite=infinite is not None), oracle_of(run, way)
    counted = iter(range(sum(steps) * plan.problem.microbatches))

    def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        at = next(counted) // plan.problem.microbatches
        return loss_fn(logits, targets) * (math.inf if at == infinite and number == pipelines - 1 else 1)

    oracle.skipped = [] if infinite is None else [infinite]
    if slow_s and rank == dist.get_world_size() - 1:
        for module in stages.values():
            module.register_forward_pre_hook(lambda *_: time.sleep(slow_s))
    for seed, count in enumerate(steps):
        with load(
            plan,
            stages,
            steps=count,
            optimizers=optimizers,
            recompute=way.recompute,
            loss_fn=loss_fn if infinite is None else loss_of,
            **groups,
        ) as pipe:
            oracle.plan, microbatches = pipe.plan, pipe.plan.problem.microbatches
            parts = [[part.chunk(microbatches) for part in one.chunk(pipelines)] for one in make_batch(pipe.plan, seed, pipelines)]
            losses = pipe.step(*(torch.cat(one[number]) for one in parts))
            expected = oracle.run(*([torch.cat(of_all) for of_all in zip(*one, strict=True)] for one in parts))
            good = torch.isfinite(losses)
            assert good.logical_not().nonzero().flatten().tolist() == ([infinite] if seed == 0 and infinite is not None else [])
            found.append(relative_error(losses[good], expected.reshape(count, -1).mean(1)[good]))
            found += weight_errors(stages, oracle.pieces)
            own_digest, digests = digest_of(weights_of(stages)), [""] * dist.get_world_size()
            dist.all_gather_object(digests, own_digest)
            assert {*digests[own::size]} == {own_digest}  # replicas are the same to the last bit
    return found


def tied(rank: int, plan: Plan, way: Way, size: int) -> list[float]:
    """As `errors`, of a model whose head has the embedding's table, on the first rank and the last; also of two pipelines."""
    stages_of = tuple(replace(stage, layers=(at, at + 1)) for at, stage in enumerate(plan.problem.stages))
    plan = replace(plan, problem=replace(plan.problem, stages=stages_of))
    pipelines, own, last = dist.get_world_size() // size, rank % size, len(stages_of) - 1
    run, groups = run_of(plan, 4), {}
    if pipelines > 1:
        groups = dict(zip(("pipeline_group", "data_parallel_group"), grid(pipelines, size), strict=True))
    layers: list[Any] = [*whole_model(run)]
    layers[last][-1].weight = layers[0][0].weight
    stages: dict[int, nn.Module] = {**schedc.runtime.build_stages(layers, run, own)}
    optimizers, oracle, found = optimizers_of(stages, way), oracle_of(run, way), list[float]()
    head: Any = oracle.pieces[last][-1]  # type: ignore[index]
    with torch.no_grad():
        head.weight.copy_(oracle.pieces[0][0].weight)  # type: ignore[index]
    oracle.ties = [((0, "0.weight"), (last, f"{len(oracle.pieces[last]) - 1}.weight"))]  # type: ignore[arg-type]
    with load(run, stages, optimizers=optimizers, **groups) as pipe:
        for number in range(2):
            parts = [
                [part.chunk(run.problem.microbatches) for part in one.chunk(pipelines)]
                for one in make_batch(run, number, pipelines)
            ]
            pipe.step(*(torch.cat(one[rank // size]) for one in parts))
            oracle.run(*([torch.cat(of_all) for of_all in zip(*one, strict=True)] for one in parts))
            found += weight_errors(stages, oracle.pieces)
    return found


def tied_later(rank: int, plan: Plan, per_stage: bool) -> str:
    """Ties that `load` has not found are refused where they cannot be kept."""
    run, lines = run_of(plan, 3), list[str]()
    stages = make_stages(run, rank)
    table = stages[0][0].weight if rank == 0 else stages[1][-1].weight  # type: ignore[index]
    with torch.no_grad():
        table.fill_(0.1)
    given = optimizers_of(stages, Way(max_norm=0.1 if per_stage else math.inf, per_stage=per_stage))
    with noting(lines), load(run, stages, optimizers=given) as pipe:
        tie_weights(pipe, {"table": table})
        pipe.step(*make_batch(run, 0))
    return lines[0]


def refused_with_replicas(rank: int, plan: Plan, synchronous: Plan, other: Plan) -> list[str]:
    """What pipelines say that do not fit each other, or would move."""
    lines, (pipeline_group, data_group) = list[str](), grid(2, 2)
    groups = {"pipeline_group": pipeline_group, "data_parallel_group": data_group}
    run = run_of(plan, 3)
    stages = make_stages(run, rank % 2)
    given = optimizers_of(stages, Way())
    for options in (
        {"optimizers": given, "plan": plan if rank < 2 else other},
        {"optimizers": optimizers_of(stages, Way(max_norm=1.0 if rank < 2 else 2.0, per_stage=True))},
    ):
        with noting(lines):
            load(options.pop("plan", plan), stages, steps=3, **options, **groups)
    with load(run, stages, optimizers=given, **groups) as pipe:
        swap = pipe.swap(synchronous)
        with warnings.catch_warnings(action="ignore"):
            for number in range(2):
                pipe.step(*make_batch(run, number))
        lines.append(str(swap.reason))
    return lines


def stopped(rank: int, plan: Plan) -> str:
    """The last rank of the last pipeline fails in a run: what is said."""
    lines, (pipeline_group, data_group) = list[str](), grid(2, 2)
    run = run_of(plan, 8)
    stages = make_stages(run, rank % 2)
    if rank == 3:
        on_forward(stages, 4, cannot_go_on)
    groups = {"pipeline_group": pipeline_group, "data_parallel_group": data_group}
    with noting(lines, Exception), load(run, stages, optimizers=optimizers_of(stages, Way()), **groups) as pipe:
        pipe.step(*make_batch(run, 0))
    return lines[0]


def cached(rank: int, plan: Plan, way: Way, steps: int, versions: int) -> tuple[list[float], list[int]]:
    """As `errors`, with room for this many versions of the rank's largest stage.

    Returns:
        The errors; and of a run with room for all and of this one the most bytes of versions, in versions of the largest stage, how
        many have gone to the host, how many ops had to wait for one.
    """
    run = run_of(plan, steps)
    largest = max(sum(weight.nbytes for weight in module.parameters()) for module in make_stages(run, rank).values())
    found, peaks, seen = list[float](), list[int](), (0, 0)
    for limit_bytes in (math.inf, versions * largest):
        stages = make_stages(run, rank)
        optimizers = optimizers_of(stages, way, device_bytes=limit_bytes)
        cache = optimizers.cache
        assert cache is not None
        with load(run, stages, optimizers=optimizers, recompute=way.recompute) as pipe:
            oracle = oracle_of(run, way)
            for number in range(2):
                before = [weight.data for weight in weights_of(stages)]
                values = [weight.clone() for weight in before]
                found += trained(pipe, oracle, number)
                assert all(map(torch.equal, before, values)), "what the job holds of the parameters is its own"
        assert cache.device_bytes == 0
        peaks.append(math.ceil(cache.peak_bytes / largest))
        seen = cache.evicted, cache.waited_for
    return found, [*peaks, *seen]


def pressed(
    rank: int, plan: Plan, tight: Plan | None, *, left: int = 2, threaded: bool = False
) -> tuple[list[float], list[PressureEvent], int, int]:
    """Runs in which memory is taken away from rank 0 with an update in the first, until all ranks go on with `tight`.

    Args:
        rank: this one.
        plan: the period.
        tight: the run or the synchronous plan to go on with; None: there is none, and three runs.
        left: how many versions there is still room for.
        threaded: whether the watch looks in its thread; else with each update, and between two runs.

    Returns:
        The errors; the warnings; by how much versions were above what is left for them afterwards; how many went to the host.
    """
    run, updates, above, warned = run_of(plan, 12), 0, list[int](), False
    stages, oracle = make_stages(run, rank), oracle_of(run, Way())
    version_bytes = sum(weight.nbytes for weight in weights_of(stages))
    optimizers, room_bytes = optimizers_of(stages, Way(), device_bytes=math.inf), 9 * version_bytes
    cache = optimizers.cache
    assert cache is not None

    def updated(*_: object) -> None:
        nonlocal updates, room_bytes
        updates += 1
        if warned or (updates > 5 and watch.events and not threaded):
            above.append(cache.device_bytes - room_bytes)
        if updates == 5 and rank == 0:
            room_bytes = left * version_bytes
        look()

    def look() -> None:
        if not threaded:
            watch.look()
            watch.look()

    for optimizer in optimizers.all:
        optimizer.register_step_post_hook(updated)
    found, number = list[float](), 0
    with load(run, stages, optimizers=optimizers) as pipe, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        plans = [] if tight is None else [tight]
        watch = MemoryWatch(pipe, least_free_bytes=0, free_bytes=lambda: room_bytes - cache.device_bytes, plans=plans, look_s=1e-4)
        with watch if threaded else nullcontext():
            while pipe.plan == run and number < (200 if plans else 3):
                found += trained(pipe, oracle, number)
                warned, number = bool(watch.events), number + 1
                look()
            if plans:
                assert pipe.plan == tight
                assert watch.swap is not None
                assert watch.swap.state == "done"
            if pipe.plan.problem.updates is not None:
                found += trained(pipe, oracle, number)
            else:
                pipe.step(*make_batch(pipe.plan, number))
    return found, watch.events, max(above, default=0), cache.evicted


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


def versions_held(rank: int, plan: Plan, steps: int) -> dict[int, int]:
    """The most versions of each stage of this rank that a run has at once."""
    run, most = run_of(plan, steps), dict[int, int]()
    stages = make_stages(run, rank)
    optimizers = optimizers_of(stages, Way())
    stage_of = {optimizer: stage for stage in stages for optimizer in optimizers.of(stage)}
    update, delays = StageWeights.update, set[tuple[int, int]]()
    for optimizer, stage in stage_of.items():
        optimizer.register_step_pre_hook(
            lambda one, *_, stage=stage: delays.update((stage, group["delay"]) for group in one.param_groups)
        )

    def counting(weights: StageWeights, step: int, factor: float | None) -> None:
        update(weights, step, factor)
        stage = stage_of[weights._optimizers[0]]
        most[stage] = max(most.get(stage, 1), weights.versions)

    StageWeights.update = counting  # type: ignore[method-assign,assignment]
    try:
        with load(run, stages, optimizers=optimizers) as pipe:
            pipe.step(*make_batch(run, 0))
    finally:
        StageWeights.update = update  # type: ignore[method-assign]
    assert delays == {(stage, run.certificate.delays[stage]) for stage in stages}
    assert not any("delay" in group for optimizer in stage_of for group in optimizer.param_groups)
    return most


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


def refused(rank: int, plan: Plan, synchronous: Plan) -> list[str]:
    """What `load` and `step` say to what does not fit."""
    run, lines = run_of(plan, 3), list[str]()
    stages = make_stages(run, rank)
    given = optimizers_of(stages, Way())
    twins = make_stages(run, rank)
    for module in twins.values():
        module.register_parameter("twin", nn.Parameter(next(module.parameters()).data))
    joint = Orders()
    joint.joint = True
    closures = {stage: torch.optim.LBFGS(module.parameters()) for stage, module in stages.items()}
    frozen = {stage: torch.optim.SGD(weights_of({stage: stages[stage]})[1:], lr=0.1) for stage in stages}
    for path, options in (
        (run, {}),
        (synchronous, {"optimizers": given}),
        (plan, {"optimizers": given}),
        (plan, {"optimizers": given, "steps": 2.5}),
        (synchronous, {"optimizers": given, "steps": 3}),
        (run, {"optimizers": given if rank else None}),
        (run, {"optimizers": frozen}),
        (run, {"optimizers": {}}),
        (run, {"optimizers": closures}),
        (run, {"optimizers": closures[rank]}),
        (run, {"optimizers": {rank: [given.by_stage[rank], given.by_stage[rank]]}}),
        (run, {"optimizers": {rank: [*stages[rank].parameters()]}}),
        (run, {"optimizers": optimizers_of(stages, Way(max_norm=1.0))}),
        (run, {"optimizers": given, "kind": ChoosingPipe}),
        (run, {"optimizers": given, "replicas": schedc.runtime.ReplicaHooks()}),
        (run, {"optimizers": optimizers_of(stages, Way(slow=3 if rank else 0))}),
        (run, {"optimizers": given, "observe": joint}),
    ):
        with noting(lines):
            load(path, stages, **options)
    with noting(lines):
        load(run, twins, optimizers=optimizers_of(twins, Way()))
    with noting(lines):
        ReducedRate(0)
    with noting(lines), load(run, stages, optimizers=given) as pipe:
        pipe.step(*make_batch(run, 0), weights=[1.0] * run.problem.microbatches)
    with load(synchronous, stages) as pipe:
        swap = pipe.swap(run)
        with warnings.catch_warnings(action="ignore"):
            while swap.state == "pending":
                pipe.step(*make_batch(synchronous, 0))
        lines.append(str(swap.reason))
    return lines


def example(rank: int, plan: Plan, text: str) -> list[float]:
    """The example of the docs: a run's losses, and that of the evaluation after it."""
    stages = tuple(replace(stage, layers=(at, at + 1)) for at, stage in enumerate(plan.problem.stages))
    found: dict[str, Any] = {
        "layers": [*whole_model(plan)],
        "plan": replace(plan, problem=replace(plan.problem, stages=stages)),
        "rank": rank,
        "loss_fn": loss_fn,
        "runs": [make_batch(run_of(plan, 100), 0)],
    }
    exec(text, found)
    return [*found["losses"].tolist(), found["validation"].item()]


class Scaled(nn.Module):
    """A stage whose backward reads what it has made of a weight."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.scales = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) * (1 + self.scale if self.scales else 1)
        return result


def with_copies(rank: int, plan: Plan, *, recompute: bool, first: int = 0) -> str | list[float]:
    """Runs in which one stage saves what it has made of a weight, from the run `first` on: what is said, or the losses."""
    run, lines = run_of(plan, 4), list[str]()
    stages = make_stages(run, rank)
    if rank == 1:
        stages[1] = scaled = Scaled(stages[1])
        scaled.scales = first == 0
    with noting(lines), load(run, stages, optimizers=optimizers_of(stages, Way()), recompute=recompute) as pipe:
        losses = [*map(float, pipe.step(*make_batch(run, 0)))]
        if first:
            if rank == 1:
                scaled.scales = True
            losses += map(float, pipe.step(*make_batch(run, 1)))
        return losses
    return lines[0]


def failing(rank: int, plan: Plan) -> str:
    """A stage of rank 1 raises in the middle of a run: what is said; parameters and optimizers are the job's again."""
    run = run_of(plan, 6)
    stages, lines = make_stages(run, rank), list[str]()
    weights = weights_of(stages)
    before = [weight.detach().clone() for weight in weights]
    given = optimizers_of(stages, Way())
    if rank == 1:
        on_forward(stages, 4, cannot_go_on)
    with noting(lines, Exception), load(run, stages, optimizers=given) as pipe:
        pipe.step(*make_batch(run, 0))
    ((optimizer,), (group,)) = given.all, given.all[0].param_groups
    assert [id(weight) for weight in group["params"]] == [id(weight) for weight in weights]
    assert optimizer.state.keys() == set(weights)
    assert "delay" not in group
    assert all(not torch.equal(weight, old) for weight, old in zip(weights, before, strict=True))  # the updates that were made
    return lines[0]


def recorded(rank: int, plan: Plan, path: str) -> list[str]:
    """A run that is recorded, and its trace: the ops of this rank."""
    run, orders = run_of(plan, 4), Orders()
    stages = make_stages(run, rank)
    with load(run, stages, optimizers=optimizers_of(stages, Way()), observe=orders) as pipe:
        pipe.step(*make_batch(run, 0))
    with load(run, stages, optimizers=optimizers_of(stages, Way()), observe=Recorder(skip=0)) as pipe:
        for number in range(2):
            pipe.step(*make_batch(run, number))
        pipe.write_trace(path)
    assert orders.steps == [[token(op) for op in run.ranks[rank].compute]]
    return orders.steps[0]


def compiled(rank: int, plan: Plan, way: Way) -> list[float]:
    """As `errors`, of stages that torch has compiled."""
    run = run_of(plan, 4)
    stages = make_stages(run, rank)
    optimizers, oracle, found = optimizers_of(stages, way), oracle_of(run, way), list[float]()
    for module in stages.values():
        module.compile(backend="aot_eager")
    with (
        load(run, stages, optimizers=optimizers, recompute=way.recompute) as pipe,
        warnings.catch_warnings(action="ignore", category=UserWarning),  # of dynamo, as it looks at gradients
    ):
        for number in range(2):
            found += trained(pipe, oracle, number)
    return found


def cast(rank: int, plan: Plan) -> list[float]:
    """As `errors`, under autocast, of float32 weights with large steps: one that was cast before its update would be far off."""
    run = run_of(plan, 4)
    stages, oracle = make_stages(run, rank), oracle_of(run, Way())
    for module in (*stages.values(), *oracle.pieces):
        module.float()
    optimizers = StageOptimizers({stage: torch.optim.SGD(module.parameters(), lr=1.0) for stage, module in stages.items()})
    oracle.optimizers = [torch.optim.SGD(piece.parameters(), lr=1.0) for piece in oracle.pieces]
    with torch.autocast("cpu", torch.bfloat16), load(run, stages, optimizers=optimizers) as pipe:
        return trained(pipe, oracle, 0)

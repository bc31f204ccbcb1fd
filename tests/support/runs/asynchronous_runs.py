"""What rank processes run in the tests of steps that overlap: runs of a plan beside one process that applies the same delays."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from oracles.delayed_updates import DelayedTraining
from torch import nn

import schedc.runtime
from runs.harness import (
    Orders,
    cannot_go_on,
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
from schedc.ir import token
from schedc.lower.run import run_of
from schedc.runtime.asynchronous.corrections import Correction, ReducedRate, WeightPrediction
from schedc.runtime.asynchronous.optimizers import StageOptimizers
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.session.online import ChoosingPipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from schedc.ir import Plan
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

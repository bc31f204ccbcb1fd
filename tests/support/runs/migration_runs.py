"""What rank processes run in the tests of migration: training while layers move, beside training that has one layout all along."""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn

import schedc.runtime
from runs.exchange_runs import builder, layers, optimizer_of
from runs.harness import load, loss_fn, make_batch, noting, on_forward
from runs.pipeline_runs import ENDS
from schedc.runtime.adapt.adapting import adapting
from schedc.runtime.adapt.migration import Migration, begin_migration
from schedc.runtime.adapt.state_transfer.stream import Inlet
from schedc.runtime.asynchronous.optimizers import StageOptimizers
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.training.clipping import clip_grad_norm_

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.ir import Plan

SMALL = 256


def values_of(stages: Mapping[int, nn.Module], plan: Plan, state_of: Mapping[Any, Any]) -> dict[str, Any]:
    """By layer, all values and the optimizer's state."""
    found: dict[str, Any] = {}
    for stage, module in stages.items():
        for number, layer in enumerate(module.children(), plan.problem.stages[stage].layers[0]):  # type: ignore[index]
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                state = {
                    key: one.tolist() if isinstance(one, torch.Tensor) else one for key, one in state_of.get(tensor, {}).items()
                }
                found[f"{number}.{name}"] = tensor.to(torch.float64).tolist(), state
    return found


def trained(
    rank: int,
    plan: Plan,
    moves: Mapping[int, Plan],
    steps: int,
    kind: str,
    *,
    max_norm: float | None = None,
    accumulated: int = 1,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
    **options: Any,
) -> dict[str, Any]:
    """Train; before the steps in `moves` a migration to another plan begins."""
    build = builder(dropout, dtype)
    stages, losses, took = build(plan, rank), list[float](), list[int]()
    optimizer = optimizer_of(kind, stages)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    migration: Migration | None = None
    with load(plan, stages, seed=3 if dropout else None) as pipe:
        for step in range(steps):
            if step in moves:
                migration = begin_migration(pipe, optimizer, moves[step], build=build, **{"chunk_bytes": SMALL, **options})
            for part in range(accumulated):
                losses.append(pipe.step(*make_batch(plan, step * accumulated + part)).item())
            if max_norm is not None:
                clip_grad_norm_(pipe, max_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if migration is not None:
                migration.between_steps()
                if migration.state == "done" and len(took) < len(moves):
                    took.append(migration.boundaries)
                    migration = None
        assert pipe.stages is stages
        return {"losses": losses, "took": took, "values": values_of(stages, pipe.plan, optimizer.state)}


def optimizers_of(stages: Mapping[int, nn.Module], kind: str, **options: Any) -> StageOptimizers:
    """One for each stage."""
    return StageOptimizers({stage: optimizer_of(kind, {stage: module}) for stage, module in stages.items()}, **options)


def overlapping(
    rank: int, plan: Plan, moves: Mapping[int, Plan], runs: range, kind: str, begin: Any = None, **options: Any
) -> dict[str, Any]:
    """As `trained`, in runs of steps that overlap; plans are those of runs. `begin` are values to begin with."""
    build = builder(0.0)
    stages, losses, took = build(plan, rank), list[float](), list[int]()
    given = optimizers_of(stages, kind, **options)
    distinct: Any = given.by_stage
    for stage, module in stages.items() if begin else ():
        for number, layer in enumerate(module.children(), plan.problem.stages[stage].layers[0]):  # type: ignore[index]
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                value, state = begin[f"{number}.{name}"]
                tensor.data.copy_(torch.tensor(value, dtype=torch.float64).reshape(tensor.shape))
                if state:
                    kept = {key: torch.tensor(one, dtype=torch.float64) for key, one in state.items()}
                    distinct[stage].state[tensor] = kept | {"step": kept["step"].float()}
    migration: Migration | None = None
    with load(plan, stages, optimizers=given) as pipe:
        for number in runs:
            if number in moves:
                migration = begin_migration(pipe, None, moves[number], build=build, chunk_bytes=SMALL)
            losses += pipe.step(*make_batch(plan, number)).tolist()
            if migration is not None:
                migration.between_steps()
                if migration.state == "done" and not took:
                    took.append(migration.boundaries)
        state = {key: value for one in distinct.values() for key, value in one.state.items()}
        return {"losses": losses, "took": took, "values": values_of(stages, pipe.plan, state)}


class Own(ReplicaHooks):
    """A job's own."""


class LossWithWeight(nn.Module):
    """A loss function that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_fn(logits, targets) * self.scale


def with_modes(rank: int, plan: Plan, moves: Mapping[int, Plan]) -> tuple[list[float], dict[str, Any], bool]:
    """Dropout is off by `eval`, weights are frozen while layers are under way: losses, modes, whether layers have moved."""

    def build(plan: Plan, rank: int) -> Mapping[int, nn.Module]:
        return schedc.runtime.build_stages(layers(0, 0.5, torch.float64), plan, rank)

    stages, losses, moved = build(plan, rank), list[float](), not moves
    modules = [module for stage in stages.values() for module in stage.modules() if isinstance(module, nn.Dropout)]
    for module in modules:
        module.eval()
    optimizer, migration = optimizer_of("adamw", stages), None
    with load(plan, stages) as pipe:
        for step in range(10):
            if step in moves:
                migration = begin_migration(pipe, optimizer, moves[step], build=build)
            losses.append(pipe.step(*make_batch(plan, step)).item())
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                for weight in (weight for stage in stages.values() for name, weight in stage.named_parameters() if "up" in name):
                    weight.requires_grad_(False)
            if migration is not None:
                migration.between_steps()
                moved = migration.state == "done"
        found = {
            f"{number}.{name}": (module.training, [weight.requires_grad for weight in module.parameters(recurse=False)])
            for stage, own in stages.items()
            for number, layer in enumerate(own.children(), pipe.plan.problem.stages[stage].layers[0])  # type: ignore[index]
            for name, module in layer.named_modules()
        }
    return losses, found, moved


def closed(rank: int, plan: Plan, other: Plan) -> int:
    """The pipe is closed while layers are under way: how many records still wait to be sent after more steps of the optimizer."""
    build = builder()
    stages = build(plan, rank)
    optimizer = optimizer_of("adamw", stages)
    with load(plan, stages) as pipe:
        migration = begin_migration(pipe, optimizer, other, build=build)
    for _ in range(200):
        optimizer.step()
        time.sleep(0.01)
    return max([leaving.outlet._records.qsize() for leaving in migration._leaving.values()], default=0)


def refused(rank: int, plan: Plan, other: Plan, way: str) -> list[Any]:
    """What a migration says to what it cannot do; the loss of the step after it, and whether the stages are as before."""
    lines, build = list[Any](), builder()
    stages = build(plan, rank)
    optimizer = optimizer_of("adamw", stages)
    before = {stage: [*module.children()] for stage, module in stages.items()}
    receive: Any = Inlet._run
    if way == "slow" and rank == 1:

        def late(inlet: Inlet) -> None:
            time.sleep(0.5)
            receive(inlet)

        Inlet._run = late  # type: ignore[method-assign,assignment]
    options: dict[str, Any] = {}
    ways: dict[str, Any] = {"slow": {"most_behind": 2}, "chunk": {"chunk_bytes": -1}, "chunks": {"chunk_bytes": 9 + rank}}
    if way in ("groups", "rate"):
        weights = [weight for stage in stages.values() for weight in stage.parameters()]
        rates: Any = [0.01 * (1 + (at + rank) % 7) for at in range(len(weights))] if way == "groups" else [0.1 * (1 + rank)]
        parts = [[weight] for weight in weights] if way == "groups" else [weights]
        groups = [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]
        optimizer = torch.optim.AdamW(groups)
    if way == "replicas":
        options = {"replicas": Own()}
    elif way == "loss":
        options = {"loss_fn": LossWithWeight().double()}
    elif way == "elsewhere":
        build = lambda plan, rank: {0: nn.Sequential()}  # noqa: E731
    with load(plan, stages, **options) as pipe, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with noting(lines), adapting(pipe, None) if way == "adapting" else nullcontext():
            given: Any = [optimizer] if way == "list" else optimizer
            migration = begin_migration(pipe, given, other, build=build, **ways.get(way, {}))
        if way == "adapts":
            with noting(lines):
                adapting(pipe, None)
        for step in range(5000):
            loss = pipe.step(*make_batch(plan, step))
            if way == "early":
                migration.between_steps()
                if migration.state != "running":
                    break
            optimizer.step()
            optimizer.zero_grad()
            if way == "early":
                continue
            if way == "changed" and rank == 0 and step == 0:
                with torch.no_grad():
                    for weight in [*stages[0].children()][-1].parameters():
                        weight.mul_(1.5)
            if lines:
                break
            migration.between_steps()
            if migration.state != "running":
                break
        if way == "slow" and rank == 1:
            Inlet._run = receive  # type: ignore[method-assign]
        lines += [migration.reason or migration.state] if not lines else []
        lines += [str(one.message) for one in warned if one.category is RuntimeWarning][:1]
        lines.append(loss.isfinite().item() and {stage: [*module.children()] for stage, module in stages.items()} == before)
    return lines


def behind(rank: int, plan: Plan, other: Plan, most_behind: int) -> tuple[int, str | None]:
    """Nothing is taken of what a layer's rank sends, in runs of steps that overlap, until it finds that too much: after how many.

    Returns:
        After how many runs this rank knew of a failure; and the reason of all.
    """
    build, receive, noted = builder(0.0), Inlet._run, 0
    stages = build(plan, rank)
    with load(plan, stages, optimizers=optimizers_of(stages, "adamw")) as pipe, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def late(inlet: Inlet) -> None:
            while not pipe.groups.store.check(["noted"]):
                time.sleep(0.01)
            receive(inlet)

        with patch.object(Inlet, "_run", late):
            migration = begin_migration(pipe, None, other, build=build, most_behind=most_behind)
        while migration.state == "running":
            pipe.step(*make_batch(plan, migration.boundaries))
            migration.between_steps()
            if migration._failed is not None and not noted:
                noted = migration.boundaries
                pipe.groups.store.set("noted", "")
    return noted, migration.reason


def killed(rank: int, plan: Plan, other: Plan, victim: int) -> str:
    """A rank is killed while layers move; what the others say."""
    build, lines = builder(), list[str]()
    stages = build(plan, rank)
    optimizer = optimizer_of("adamw", stages)
    if rank == victim:
        on_forward(stages, 8, ENDS["kill"])
    with noting(lines), load(plan, stages, timeout_s=20) as pipe:
        migration = begin_migration(pipe, optimizer, other, build=build, chunk_bytes=8)
        for step in range(30):
            pipe.step(*make_batch(plan, step))
            optimizer.step()
            optimizer.zero_grad()
            migration.between_steps()
    return f"{lines[0]} {migration.state}" if lines else "went on"

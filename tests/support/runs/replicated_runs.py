"""What rank processes run in the tests of data parallelism: several pipelines beside one model without any."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.harness import (
    Descent,
    Layer,
    Run,
    cannot_go_on,
    grid,
    living_tensors,
    load,
    loss_fn,
    make_batch,
    noting,
    on_forward,
    piece_of,
    weights_of,
)
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan


class Tied(nn.Module):
    """A last piece that uses a weight of the first, which lives on the same rank."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.inner = Layer().double()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) @ self.table.weight.t()
        return result


def tie_pieces(run: Run) -> None:
    """Let the last piece share the embedding of the first, in the whole model, and on a rank that has both."""
    whole, last = dict(enumerate(run.whole)), len(run.whole) - 1
    own = {piece_of(run.plan, stage): module for stage, module in run.stages.items()}
    for pieces in (whole, own):
        if 0 in pieces and last in pieces:
            torch.manual_seed(last)
            pieces[last] = Tied(next(module for module in pieces[0].modules() if isinstance(module, nn.Embedding)))
    run.whole = [*whole.values()]
    run.stages = {stage: own[piece_of(run.plan, stage)] for stage in run.stages}


def tied_on_both_paths(rank: int, plan: Plan, tying: Sequence[int]) -> float:
    """On a bidirectional placement the last piece has the embedding's weight; the largest error of a gradient of two steps.

    Ranks that are not in `tying` have a copy of it there.
    """
    run = Run(plan)
    tie_pieces(run)
    if rank not in tying:
        run.stages = {stage: deepcopy(module) for stage, module in run.stages.items()}
    with run.load():
        for step in range(2):
            run.step(step)
        return max(run.gradient_errors())


def train_replicated(rank: int, plan: Plan, *, adamw: bool = False, tied: bool = False, each: int = 1) -> dict[str, Any]:
    """Two optimizer steps, of `each` steps of the pipe, beside the model without a pipeline and all pipelines' batches together.

    The largest relative errors of gradients and weights, and the losses.
    """
    run = Run(plan)
    if tied:
        tie_pieces(run)
    gradient_errors, losses, expected, microbatches = [], [], [], []
    with run.load() as pipe:
        optimizers: list[Any] = [
            torch.optim.AdamW(weights, lr=0.05) if adamw else Descent(weights, 0.9) for weights in (run.weights, run.whole_weights)
        ]
        for step in range(2):
            run.clear()
            for part in range(each):
                loss, right = run.step(step * each + part)
                losses.append(loss.item())
                expected.append(right.item())
                inputs, targets = run.batch(step * each + part)
                with torch.no_grad():
                    chunks = [one.chunk(plan.problem.microbatches) for one in run.share((run.outputs(inputs), targets))]
                alone = torch.stack([loss_fn(*both) for both in zip(*chunks, strict=True)])
                microbatches.append(float((pipe.losses - alone).abs().max()))
            gradient_errors += run.gradient_errors()
            for optimizer in optimizers:
                optimizer.step()
        pipe.gather()
        return {
            "gradients": max(gradient_errors),
            "weights": max(run.weight_errors()),
            "losses": losses,
            "expected": expected,
            "microbatches": max(microbatches),
            "owned": sum(weight.numel() for weight in run.weights),
            "all": sum(weight.numel() for weight in weights_of(run.stages)),
        }


def refuse_replicated(rank: int, plans: Sequence[Plan], pipelines: int, seeds: Sequence[int] = (0, 0, 0, 0), **more: Any) -> str:
    """Load with a group of replicas."""
    ranks = dist.get_world_size() // pipelines
    pipeline_group, data_group = grid(pipelines, ranks)
    stages: dict[int, nn.Module] = {}
    for stage in plans[rank].problem.stages_on(rank % ranks):
        torch.manual_seed(seeds[rank])
        stages[stage] = nn.Linear(2, 2)
    load(plans[rank], stages, **{"pipeline_group": pipeline_group, "data_parallel_group": data_group, **more}).close()
    return "accepted"


def refuse_mixed_up(rank: int, plan: Plan) -> str:
    """Replicas of different ranks: the pipelines [0, 1] and [2, 3], and the groups (0, 3) and (1, 2)."""
    pipeline_group, _ = grid(2, 2)
    groups = [dist.new_group(members) for members in ([0, 3], [1, 2])]
    return refuse_replicated(rank, [plan] * 4, 2, pipeline_group=pipeline_group, data_parallel_group=groups[rank in (1, 2)])


def refuse_batches(
    rank: int,
    plan: Plan,
    chooses: bool = False,
    culprit: int | None = None,
    group: str = "data_parallel_group",
    between: bool = True,
) -> tuple[list[str], bool]:
    """Two steps, and the same two with batches before and `between` them that do not fit, in one process alone where it is named.

    Returns:
        What these say, and whether gradients are equal.
    """
    run = Run(plan)
    groups: dict[str, Any] = {"pipeline_group": grid(run.pipelines, plan.problem.ranks)[0], "data_parallel_group": None}
    if run.pipelines > 1:
        groups[group] = grid(run.pipelines, plan.problem.ranks)[1]
    lines, found = list[str](), []
    with run.load(kind=ChoosingPipe if chooses else Pipe, **groups) as pipe:
        for refuses in (False, True):
            for step in range(2):
                inputs, targets = make_batch(plan, step)
                wrong: list[Any] = [["none"] * 4] if not step else []
                if step and refuses:
                    wrong = [inputs[:0], inputs[0, 0], [inputs[:2]] * 3, None]
                calls: list[Any] = [(pipe.step, batch) for batch in wrong if between or not (step or refuses)]
                for call, batch in [*calls, *((pipe.evaluate, batch) for batch in wrong[1:])]:
                    given = (batch, targets[: None if culprit is None else 0]) if culprit in (None, rank) else (inputs, targets)
                    try:
                        call(*given)
                    except schedc.runtime.BatchRefused as error:
                        lines.append(str(error))
                pipe.step(inputs, targets)
            found.append([weight.grad for weight in run.weights])
            run.clear()
    same = all(torch.equal(one, other) for one, other in zip(*found, strict=True) if one is not None and other is not None)
    return lines, same and len(found[0]) > 0


def fail_replicated(rank: int, plan: Plan, culprit: int) -> str:
    """A step in which one process fails in its second forward."""
    run = Run(plan)
    if rank == culprit:
        on_forward(run.stages, 2, cannot_go_on)
    run.load(timeout_s=30).step(*run.share(run.batch(0)))
    return "stepped"


def not_finite(rank: int, plan: Plan) -> list[str]:
    """A step in which the first pipeline's loss is NaN, and one after it: what each process says."""
    run, lines, calls = Run(plan), list[str](), 0

    def broken(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss_fn(logits, targets) * (float("nan") if run.pipeline == 0 and calls == 2 else 1.0)

    with run.load(loss_fn=broken) as pipe:
        for step in range(2):
            with noting(lines):
                pipe.step(*run.share(run.batch(step)))
                lines.append("stepped")
    return lines


def live_tensors(rank: int, plan: Plan, **options: Any) -> list[int]:
    """How many tensors the process holds after each of four steps."""
    run, counts = Run(plan), []
    with run.load(**options) as pipe:
        for step in range(4):
            pipe.step(*run.share(run.batch(step)))
            counts.append(living_tensors())
    return counts


def masters(rank: int, plan: Plan) -> dict[str, Any]:
    """Steps of ZeRO 1 in bf16 with gradients in float32, small enough that bf16 alone would lose them."""
    run = Run(plan)
    run.stages = {stage: module.bfloat16() for stage, module in run.stages.items()}
    with run.load(grad_dtype=torch.float32) as pipe:
        shards = pipe.shards()
        before = [shard.weight.detach().clone() for shard in shards]
        for step in range(3):
            pipe.step(*run.share(run.batch(step)))
            with torch.no_grad():
                for shard in shards:
                    assert shard.weight.grad is not None
                    shard.weight.add_(shard.weight.grad.sign(), alpha=1e-5)
                    shard.weight.grad = None
        pipe.gather()
        equal = []
        for shard in shards:
            weight = run.stages[shard.stage].get_parameter(shard.name).detach().flatten()
            equal.append(torch.equal(weight[shard.start : shard.stop], shard.weight.detach().bfloat16()))
        moved = [bool((shard.weight != old).any()) for shard, old in zip(shards, before, strict=True)]
    return {
        "dtypes": {str(shard.weight.dtype) for shard in shards},
        "equal": all(equal),
        "moved": all(moved),
        "whole": [weight.detach().float() for weight in weights_of(run.stages)],
    }


class Counting(nn.Module):
    """After a piece, a layer with statistics and a count that each forward changes, a table that is not saved, and two weights.

    One of these is used in some pipelines only, the other never.
    """

    count: torch.Tensor
    mean: torch.Tensor
    table: torch.Tensor

    def __init__(self, inner: nn.Module, *, uses: bool, start: float) -> None:
        super().__init__()
        self.inner = inner
        self.uses = uses
        self.some = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.never = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(False))
        self.register_buffer("mean", torch.full((), start, dtype=torch.float64))
        self.register_buffer("table", torch.full((), start, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        if self.training:
            self.count = torch.logical_not(self.count)
            self.mean = self.mean / 2 + result.detach().mean()
        return result * self.some if self.uses else result


def state(rank: int, plan: Plan) -> tuple[list[Any], list[bool]]:
    """Steps from buffers that differ: those of this rank's pieces afterwards, by piece.

    And of each weight whether it has no gradient though a replica has used it, or one though none has.
    """
    run, start = Run(plan), 1.0 + rank
    stages = {stage: Counting(module, uses=stage % 2 == run.pipeline, start=start) for stage, module in run.stages.items()}
    run.stages = {**stages}
    with run.load() as pipe:
        for step in range(2):
            pipe.step(*make_batch(plan, 10 * run.pipeline + step))
        for module in stages.values():
            module.eval()
        pipe.evaluate(*make_batch(plan, 0))
        if run.sharded:
            grads = {(shard.stage, shard.name): shard.weight.grad for shard in pipe.shards()}
        else:
            grads = {(stage, name): weight.grad for stage, each in stages.items() for name, weight in each.named_parameters()}
    wrong = [(grad is None) is not name.endswith("never") for (_, name), grad in grads.items()]
    return [
        (piece_of(plan, stage), each.count.item(), each.mean.item(), each.table.item() == start) for stage, each in stages.items()
    ], wrong


def unfrozen(rank: int, plan: Plan, way: str) -> str:
    """What a step says to a weight that is trained from the second step on: unfrozen, or new; in a tied one."""
    run = Run(plan)
    layers = [layer for module in run.stages.values() for layer in module.modules() if isinstance(layer, Layer)]
    biases = [layer.norm.get_parameter("bias") for layer in layers]
    for bias in biases:
        bias.requires_grad_(way == "new")
    with run.load() as pipe:
        if way == "tied":
            tie_weights(pipe, {"bias": biases[0]})
        pipe.step(*make_batch(plan, 0))
        for layer, bias in zip(layers, biases, strict=True):
            bias.requires_grad_()
            if way == "new":
                layer.norm.bias = nn.Parameter(bias.detach().clone())
        pipe.step(*make_batch(plan, 0))
    return "trained"

"""What rank processes run in the tests of data parallelism: several pipelines beside one model without any."""

from __future__ import annotations

import gc
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.pipeline_runs import SAMPLES, TOKENS, Layer, loss_fn, make_batch, make_piece, make_stages, piece_of, relative_error
from schedc.errors import SchedcError
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan


@cache
def grid(pipelines: int, ranks: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This process's pipeline and its replicas, as a job makes them."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (pipelines, ranks), mesh_dim_names=("data", "pipeline"))
    return mesh.get_group("pipeline"), mesh.get_group("data")


def whole_batch(plan: Plan, pipelines: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all pipelines."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randint(TOKENS, (2, pipelines * SAMPLES * plan.problem.microbatches, 3), generator=generator)
    return batch[0], batch[1]


class Tied(nn.Module):
    """A last piece that uses a weight of the first, which lives on the same rank."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.inner = Layer().double()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) @ self.table.weight.t()
        return result


def tie(pieces: dict[int, nn.Module], first: int, last: int) -> None:
    """Let the last piece share the embedding of the first, where both are here."""
    if first in pieces and last in pieces:
        torch.manual_seed(last)
        embedding = next(module for module in pieces[first].modules() if isinstance(module, nn.Embedding))
        pieces[last] = Tied(embedding)


def tied_on_both_paths(rank: int, plan: Plan, tying: Sequence[int]) -> float:
    """On a bidirectional placement the last piece has the embedding's weight; the largest error of a gradient of two steps.

    Ranks that are not in `tying` have a copy of it there.
    """
    count = len(plan.problem.paths[0])
    pieces = {index: make_piece(index, count) for index in range(count)}
    tie(pieces, 0, count - 1)
    place = {stage: piece_of(plan, stage) for stage in plan.problem.stages_on(rank)}
    own_pieces = {index: make_piece(index, count) for index in place.values()}
    tie(own_pieces, 0, count - 1)
    if rank not in tying:
        own_pieces = {index: deepcopy(piece) for index, piece in own_pieces.items()}
    stages = {stage: own_pieces[index] for stage, index in place.items()}
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60) as pipe:
        for step in range(2):
            inputs, targets = whole_batch(plan, 1, step)
            pipe.step(inputs, targets)
            y = inputs
            for index in range(count):
                y = pieces[index](y)
            torch.autograd.backward(loss_fn(y, targets))
    pairs = [
        (own.grad, other.grad)
        for stage, module in stages.items()
        for own, other in zip(module.parameters(), pieces[place[stage]].parameters(), strict=True)
    ]
    return max(relative_error(*pair) for pair in pairs)


def optimizer_of(kind: str, parameters: Sequence[nn.Parameter]) -> Any:
    """A real optimizer, or plain descent, which needs no library that takes seconds to load."""
    return torch.optim.AdamW(parameters, lr=0.05) if kind == "adamw" else Descent(parameters)


class Descent:
    """SGD with momentum."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.speeds = [torch.zeros_like(parameter) for parameter in self.parameters]

    def step(self) -> None:
        with torch.no_grad():
            for parameter, speed in zip(self.parameters, self.speeds, strict=True):
                if parameter.grad is not None:
                    parameter.sub_(speed.mul_(0.9).add_(parameter.grad), alpha=0.1)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def train_replicated(
    rank: int, plan: Plan, pipelines: int, *, optimizer: str = "", tied: bool = False, each: int = 1
) -> dict[str, Any]:
    """Two optimizer steps, of `each` steps of the pipe, beside the model without a pipeline and all pipelines' batches together.

    The largest relative errors of gradients and weights, and the losses.
    """
    pipeline_group, data_group = grid(pipelines, plan.problem.ranks)
    number, own = divmod(rank, plan.problem.ranks)
    stages = make_stages(plan, own)
    pieces = {index: make_piece(index, len(plan.problem.paths[0])) for index in range(len(plan.problem.paths[0]))}
    if tied:
        tie(stages, plan.problem.paths[0][0], plan.problem.paths[0][-1])
        tie(pieces, 0, len(pieces) - 1)
    whole = nn.ModuleList(pieces[index] for index in sorted(pieces))
    sharded = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
    gradient_errors, weight_errors, losses, expected, microbatches = [], [], [], [], []
    with schedc.runtime.load(
        plan, stages=stages, loss_fn=loss_fn, timeout_s=60, pipeline_group=pipeline_group, data_parallel_group=data_group
    ) as pipe:
        weights = dict.fromkeys(weight for module in stages.values() for weight in module.parameters())
        mine = optimizer_of(optimizer, [shard.weight for shard in pipe.shards()] if sharded else list(weights))
        reference = optimizer_of(optimizer, list(whole.parameters()))
        for step in range(2):
            mine.zero_grad()
            reference.zero_grad()
            for part in range(each):
                inputs, targets = whole_batch(plan, pipelines, step * each + part)
                halves = [batch.chunk(pipelines)[number] for batch in (inputs, targets)]
                losses.append(pipe.step(*halves).item())
                outputs = inputs
                for piece in whole:
                    outputs = piece(outputs)
                loss = loss_fn(outputs, targets)
                torch.autograd.backward(loss)
                expected.append(loss.item())
                logits = outputs.detach().chunk(pipelines)[number].chunk(plan.problem.microbatches)
                alone = [loss_fn(*both) for both in zip(logits, halves[1].chunk(plan.problem.microbatches), strict=True)]
                microbatches.append(float((pipe.losses - torch.stack(alone)).abs().max()))
            if sharded:
                for shard in pipe.shards():
                    same = dict(whole[piece_of(plan, shard.stage)].named_parameters())[shard.name].grad
                    assert same is not None
                    gradient_errors.append(relative_error(shard.weight.grad, same.flatten()[shard.start : shard.stop]))
                assert all(weight.grad is None for weight in weights)
            else:
                gradient_errors += [relative_error(own.grad, other.grad) for own, other in pairs(plan, stages, whole)]
            mine.step()
            reference.step()
        pipe.gather()
        weight_errors = [relative_error(own.detach(), other.detach()) for own, other in pairs(plan, stages, whole)]
        owned = sum(shard.weight.numel() for shard in pipe.shards()) if sharded else sum(weight.numel() for weight in weights)
    return {
        "gradients": max(gradient_errors),
        "weights": max(weight_errors),
        "losses": losses,
        "expected": expected,
        "microbatches": max(microbatches),
        "owned": owned,
        "all": sum(weight.numel() for weight in weights),
    }


def pairs(plan: Plan, stages: dict[int, nn.Module], whole: nn.ModuleList) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The weights of this rank, with those of the whole model."""
    return [
        both
        for stage, module in stages.items()
        for both in zip(module.parameters(), whole[piece_of(plan, stage)].parameters(), strict=True)
    ]


def refuse_replicated(rank: int, plans: Sequence[Plan], pipelines: int, seeds: Sequence[int] = (0, 0, 0, 0), **more: Any) -> str:
    """Load with a group of replicas; the refusal."""
    ranks = dist.get_world_size() // pipelines
    pipeline_group, data_group = grid(pipelines, ranks)
    stages: dict[int, nn.Module] = {}
    for stage in plans[rank].problem.stages_on(rank % ranks):
        torch.manual_seed(seeds[rank])
        stages[stage] = nn.Linear(2, 2)
    try:
        pipe = schedc.runtime.load(
            plans[rank],
            stages=stages,
            loss_fn=loss_fn,
            timeout_s=60,
            **{"pipeline_group": pipeline_group, "data_parallel_group": data_group, **more},
        )
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    pipe.close()
    return "accepted"


def refuse_mixed_up(rank: int, plan: Plan) -> str:
    """Replicas of different ranks: the pipelines [0, 1] and [2, 3], and the groups (0, 3) and (1, 2)."""
    pipeline_group, _ = grid(2, 2)
    groups = [dist.new_group(members) for members in ([0, 3], [1, 2])]
    return refuse_replicated(rank, [plan] * 4, 2, pipeline_group=pipeline_group, data_parallel_group=groups[rank in (1, 2)])


class Failing(nn.Module):
    """A stage that fails in its second forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("this stage cannot go on")
        result: torch.Tensor = self.inner(x)
        return result


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
    pipelines = dist.get_world_size() // plan.problem.ranks
    pipeline_group, replicas = grid(pipelines, plan.problem.ranks)
    groups: dict[str, Any] = {"pipeline_group": pipeline_group}
    if pipelines > 1:
        groups[group] = replicas
    stages = make_stages(plan, rank % plan.problem.ranks)
    weights = [weight for module in stages.values() for weight in module.parameters()]
    said, found = list[str](), []
    kind = ChoosingPipe if chooses else Pipe
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, kind=kind, **groups) as pipe:
        zero = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage > 0
        owned = [shard.weight for shard in pipe.shards()] if zero else weights
        for refuses in (False, True):
            for step in range(2):
                inputs, targets = make_batch(plan, step)
                wrong: list[Any] = [["none"] * 4] if not step else []
                if step and refuses:
                    wrong = [inputs[:4], inputs[:7], [inputs[:2]] * 3, None]
                calls: list[Any] = [(pipe.step, batch) for batch in wrong if between or not (step or refuses)]
                for call, batch in [*calls, *((pipe.evaluate, batch) for batch in wrong[1:])]:
                    given = (batch, targets[:7]) if culprit in (None, rank) else (inputs, targets)
                    try:
                        call(*given)
                    except schedc.runtime.BatchRefused as error:
                        said.append(str(error))
                pipe.step(inputs, targets)
            found.append([weight.grad for weight in owned])
            for weight in (*weights, *owned):
                weight.grad = None
    same = all(torch.equal(one, other) for one, other in zip(*found, strict=True) if one is not None and other is not None)
    return said, same and len(found[0]) > 0


def fail_replicated(rank: int, plan: Plan, culprit: int) -> str:
    """A step in which one process fails: what every process says."""
    pipeline_group, data_group = grid(2, 2)
    stages = make_stages(plan, rank % 2)
    if rank == culprit:
        stages = {stage: Failing(module) for stage, module in stages.items()}
        for module in stages.values():  # the same weights under other names
            assert [*module.parameters()]
    pipe = schedc.runtime.load(
        plan, stages=stages, loss_fn=loss_fn, timeout_s=30, pipeline_group=pipeline_group, data_parallel_group=data_group
    )
    try:
        pipe.step(*(batch.chunk(2)[rank // 2] for batch in whole_batch(plan, 2, 0)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "stepped"


def train_with_adamw(rank: int, plan: Plan, pipelines: int) -> dict[str, Any]:
    """`train_replicated` with AdamW."""
    return train_replicated(rank, plan, pipelines, optimizer="adamw")


def train_tied(rank: int, plan: Plan, pipelines: int) -> dict[str, Any]:
    """`train_replicated` with a weight that two stages of a rank share."""
    return train_replicated(rank, plan, pipelines, tied=True)


def train_in_two_parts(rank: int, plan: Plan, pipelines: int) -> dict[str, Any]:
    """`train_replicated` with two steps of the pipe to each of the optimizer."""
    return train_replicated(rank, plan, pipelines, each=2)


def refuse_without_group(rank: int, plan: Plan) -> str:
    """Load a plan with collectives, but no replicas."""
    return refuse_replicated(rank, [plan] * 4, 2, data_parallel_group=None)


def not_finite(rank: int, plan: Plan, pipelines: int) -> list[str]:
    """A step in which the first pipeline's loss is NaN, and one after it: what each process says."""
    pipeline_group, data_group = grid(pipelines, plan.problem.ranks)
    number, own = divmod(rank, plan.problem.ranks)
    said = []
    calls = 0

    def broken(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss_fn(logits, targets) * (float("nan") if number == 0 and calls == 2 else 1.0)

    stages = make_stages(plan, own)
    with schedc.runtime.load(
        plan, stages=stages, loss_fn=broken, timeout_s=60, pipeline_group=pipeline_group, data_parallel_group=data_group
    ) as pipe:
        for step in range(2):
            try:
                pipe.step(*(batch.chunk(pipelines)[number] for batch in whole_batch(plan, pipelines, step)))
                said.append("stepped")
            except SchedcError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


def live_tensors(rank: int, plan: Plan, pipelines: int, **options: Any) -> list[int]:
    """How many tensors the process holds after each of four steps."""
    groups: dict[str, Any] = {}
    number, own = divmod(rank, plan.problem.ranks)
    if pipelines > 1:
        groups["pipeline_group"], groups["data_parallel_group"] = grid(pipelines, plan.problem.ranks)
    counts = []
    with schedc.runtime.load(plan, stages=make_stages(plan, own), loss_fn=loss_fn, timeout_s=60, **groups, **options) as pipe:
        for step in range(4):
            pipe.step(*(batch.chunk(pipelines)[number] for batch in whole_batch(plan, pipelines, step)))
            gc.collect()
            counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    return counts


def masters(rank: int, plan: Plan, pipelines: int) -> dict[str, Any]:
    """Steps of ZeRO 1 in bf16 with gradients in float32, small enough that bf16 alone would lose them."""
    pipeline_group, data_group = grid(pipelines, plan.problem.ranks)
    number, own = divmod(rank, plan.problem.ranks)
    stages = {stage: module.bfloat16() for stage, module in make_stages(plan, own).items()}
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss_fn,
        timeout_s=60,
        pipeline_group=pipeline_group,
        data_parallel_group=data_group,
        grad_dtype=torch.float32,
    ) as pipe:
        shards = pipe.shards()
        before = [shard.weight.detach().clone() for shard in shards]
        for step in range(3):
            pipe.step(*(batch.chunk(pipelines)[number] for batch in whole_batch(plan, pipelines, step)))
            with torch.no_grad():
                for shard in shards:
                    assert shard.weight.grad is not None
                    shard.weight.add_(shard.weight.grad.sign(), alpha=1e-5)
                    shard.weight.grad = None
        pipe.gather()
        equal = []
        for shard in shards:
            weight = dict(stages[shard.stage].named_parameters())[shard.name]
            equal.append(torch.equal(weight.detach().flatten()[shard.start : shard.stop], shard.weight.detach().bfloat16()))
        moved = [bool((shard.weight != old).any()) for shard, old in zip(shards, before, strict=True)]
    return {
        "dtypes": {str(shard.weight.dtype) for shard in shards},
        "equal": all(equal),
        "moved": all(moved),
        "whole": [weight.detach().float() for module in stages.values() for weight in module.parameters()],
    }

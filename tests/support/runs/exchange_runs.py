"""What rank processes run in the tests of the exchange: training whose processes change places, beside training that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.harness import TOKENS, WIDTH, Layer, load, make_batch, noting, said, weights_of
from runs.pipeline_runs import ENDS
from schedc.errors import SchedcError
from schedc.runtime.adapt.places import Places
from schedc.runtime.adapt.state_transfer import exchange
from schedc.runtime.adapt.state_transfer.exchange import move
from schedc.runtime.transports.gloo import GlooTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from schedc.ir.plan import Plan
    from schedc.runtime.session.pipe import Pipe

LAYERS = 6


class Counting(nn.Module):
    """A layer with a buffer that training changes, one that is not saved, dropout, and a frozen weight."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = Layer()
        self.dropout = nn.Dropout(dropout)
        self.shift = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2, 0, 3))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.mean: torch.Tensor
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(dim=tuple(range(x.dim() - 1))), 0.1)
            self.calls += 1
        result: torch.Tensor = self.dropout(self.inner(x)) + self.shift + self.mean
        return result


def layers(seed: int, dropout: float, dtype: torch.dtype) -> list[nn.Module]:
    """A whole model."""
    torch.manual_seed(seed)
    made = [nn.Embedding(TOKENS, WIDTH), *(Counting(dropout) for _ in range(LAYERS - 2)), nn.Linear(WIDTH, TOKENS)]
    return [layer.to(dtype) for layer in made]


def builder(dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> Callable[[Plan, int], Mapping[int, nn.Module]]:
    """What makes a rank's stages."""
    return lambda plan, rank: schedc.runtime.build_stages(layers(0, dropout, dtype), plan, rank)


def load_at(groups: Sequence[Any], plan: Plan, stages: Mapping[int, nn.Module], **options: Any) -> Pipe:
    """`load` over these groups."""
    return load(plan, stages, pipeline_group=groups[0], data_parallel_group=groups[1], **options)


def batch_at(places: Places, plan: Plan, step: int) -> list[torch.Tensor]:
    """What the pipeline of this process gets."""
    pipelines = dist.get_world_size() // plan.problem.ranks
    return [part.chunk(pipelines)[places.pipeline(dist.get_rank())] for part in make_batch(plan, step, pipelines)]


def optimizer_of(kind: str, stages: Mapping[int, nn.Module]) -> Any:
    """With two groups, of matrices and of the rest."""
    weights = [weight for weight in weights_of(stages) if weight.requires_grad]
    groups: Any = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": 0.1},
        {"params": [w for w in weights if w.dim() < 2]},
    ]
    return torch.optim.AdamW(groups, lr=0.05) if kind == "adamw" else torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def trained(
    rank: int,
    moves: Mapping[int, tuple[Sequence[int], Plan]],
    steps: int,
    kind: str,
    dropout: float = 0.1,
    dtype: torch.dtype = torch.float64,
    grad_dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Train; before the steps in `moves` the processes take other places (the process of each), or go on with another plan.

    Returns:
        The losses; by pipeline and layer, all values of the layer and of the optimizer's state; whether modules were kept.
    """
    (hosts, plan), losses, kept = moves[0], [], []
    places = Places.of_hosts(plan.problem.ranks, tuple(hosts))
    groups: Any = places.groups(60)
    build, pipe = builder(dropout, dtype), None
    stages = build(plan, places.rank(rank))
    optimizer = optimizer_of(kind, stages)
    torch.manual_seed(places.of_process[rank])
    for step in range(steps):
        if step == 0 or step in moves:
            if pipe is not None:
                hosts, plan = moves[step]
                after, old = Places.of_hosts(plan.problem.ranks, tuple(hosts)), stages
                optimizer.zero_grad()
                moved = move(
                    pipe, optimizer, places, after, build=build, optimizer_of=lambda made: optimizer_of(kind, made), plan=plan
                )
                (stages, optimizer, *groups), places = moved, after
                kept.append(stages is old)
            pipe = load_at(groups, plan, stages, grad_dtype=grad_dtype)
        assert pipe is not None
        optimizer.zero_grad()
        losses.append(pipe.step(*batch_at(places, plan, step)).item())
        if step == 1:
            optimizer.param_groups[0]["lr"] = 0.02
        optimizer.step()
    assert pipe is not None
    pipe.close()
    return {"losses": losses, "values": _values(stages, plan, optimizer, places.pipeline(rank)), "kept": kept}


def _values(stages: Mapping[int, nn.Module], plan: Plan, optimizer: Any, pipeline: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for stage, module in stages.items():
        bounds = plan.problem.stages[stage].layers
        assert bounds is not None and isinstance(module, nn.Sequential)
        for number, layer in enumerate(module, bounds[0]):
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                state = optimizer.state.get(tensor, {})
                assert tensor.requires_grad == (name not in ("shift", "mean", "calls"))
                found[f"{pipeline}.{number}.{name}"] = (
                    tensor.tolist(),
                    {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in state.items()},
                )
    return found


def refused(rank: int, plans: Sequence[Plan], way: str) -> str:
    """What the exchange says to what does not fit; what a process has stays as it was, and training goes on."""
    plan = plans[0]
    ranks = plan.problem.ranks
    places = Places.in_order(dist.get_world_size(), ranks)
    groups = places.groups(60)
    stages: Any = builder()(plan, rank % ranks)
    if way == "shared":
        for module in stages.values():
            like = [layer for layer in module if isinstance(layer, Counting)]
            like[-1].inner.up.bias = like[0].inner.up.bias
    optimizer = optimizer_of("sgd" if way == "kind" and rank == 1 else "adamw", stages)
    after = Places(ranks, (1, 0, 3, 2) if way == "apart" and rank == 2 else (0, 1, 3, 2))
    lines = list[str]()
    with load_at(groups, plan, stages) as pipe:
        batch = make_batch(plan, 0)
        if way == "stranger" and rank == 0:
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        if way == "gradients":
            pipe.step(*batch)
        with noting(lines):
            move(
                pipe,
                optimizer,
                places,
                after,
                build=builder(dtype=torch.float32 if way == "build" else torch.float64),
                optimizer_of=lambda made: optimizer_of("adamw", made),
                plan=plans[1] if len(plans) > 1 else None,
                timeout_s=20,
            )
        if way != "build":
            pipe.step(*batch)
    return lines[0] if lines else ""


def killed(rank: int, plan: Plan, victim: int, where: str) -> str:
    """A process is killed during an exchange; what the others say."""
    ranks = plan.problem.ranks
    places = Places.in_order(dist.get_world_size(), ranks)
    groups, build = places.groups(60), builder()
    stages = build(plan, rank % ranks)
    weights = [weight.clone() for weight in weights_of(stages)]
    optimizer = optimizer_of("adamw", stages)

    def die(*_: Any) -> Any:
        ENDS["kill"]()

    if rank == victim:
        if where == "carry":
            GlooTransport.send = die  # type: ignore[assignment,method-assign]
        elif where == "build":
            build = die
        else:
            every, calls = exchange._all, [0]

            def counted(*arguments: Any) -> Any:
                calls[0] += 1
                return die() if calls[0] == int(where) else every(*arguments)

            exchange._all = counted  # type: ignore[assignment]
    try:
        with load_at(groups, plan, stages) as pipe:
            move(
                pipe,
                optimizer,
                places,
                Places(ranks, (3, 2, 1, 0)),
                build=build,
                optimizer_of=lambda made: optimizer_of("adamw", made),
                timeout_s=10,
            )
    except SchedcError as error:
        same = all(torch.equal(one, other) for one, other in zip(weights, weights_of(stages), strict=True))
        return f"{said(error)}; {'as it was' if same else 'emptied'}"
    return "moved"


def exchanging(rank: int, plan: Plan, steps: int, timeout_s: float) -> tuple[list[float], str]:
    """Train, with an exchange of all places after each step; the losses, and how it ended."""
    ranks, processes = plan.problem.ranks, dist.get_world_size()
    places, losses, lines = Places.in_order(processes, ranks), list[float](), list[str]()
    groups, build = places.groups(timeout_s), builder(0.1)
    stages = build(plan, places.rank(rank))
    optimizer = optimizer_of("sgd", stages)
    torch.manual_seed(rank)
    with noting(lines):
        for step in range(steps):
            pipe = load_at(groups, plan, stages, timeout_s=timeout_s)
            optimizer.zero_grad()
            losses.append(pipe.step(*batch_at(places, plan, step)).item())
            optimizer.step()
            optimizer.zero_grad()
            after = Places(ranks, tuple((place + 1 + step % 2) % processes for place in places.of_process))
            stages, optimizer, *groups = move(  # type: ignore[assignment]
                pipe,
                optimizer,
                places,
                after,
                build=build,
                optimizer_of=lambda made: optimizer_of("sgd", made),
                timeout_s=timeout_s,
            )
            places = after
    return losses, lines[0] if lines else ""

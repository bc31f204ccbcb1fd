"""A small harness that trains: a model, its batches, and a `Run` of a plan beside the same model without a pipeline.

In: a plan, and what `schedc.runtime.load` takes. Out: losses, and errors of gradients and weights relative to the whole model's.
What is refused is raised: `rank_processes` gives it to the test as text. `torch.optim` takes seconds to load: `Descent` does not.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from schedc.errors import SchedcError
from schedc.ir.ops import token
from schedc.runtime.common.hooks import Observer, OpTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from schedc.ir.plan import Plan
    from schedc.runtime.session.pipe import Pipe

WIDTH = 6
TOKENS = 7
SAMPLES = 2


class Layer(nn.Module):
    """A piece of the model: a norm, two linear layers and the way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return result


def piece_of(plan: Plan, stage: int) -> int:
    """The place of a stage on its path; stages of two paths at the same place are replicas."""
    return next(path.index(stage) for path in plan.problem.paths if stage in path)


def make_piece(index: int, count: int) -> nn.Module:
    """Piece `index` of a model of `count`, always with the same weights: embedding first, logits last."""
    torch.manual_seed(index)
    layers: list[nn.Module] = [Layer()]
    if index == 0:
        layers.insert(0, nn.Embedding(TOKENS, WIDTH))
    if index == count - 1:
        layers.append(nn.Linear(WIDTH, TOKENS))
    return nn.Sequential(*layers).double()


def make_stages(plan: Plan, rank: int) -> dict[int, nn.Module]:
    """The rank's stages."""
    count = len(plan.problem.paths[0])
    return {stage: make_piece(piece_of(plan, stage), count) for stage in plan.problem.stages_on(rank)}


def whole_model(plan: Plan) -> nn.Sequential:
    """The model without a pipeline."""
    count = len(plan.problem.paths[0])
    return nn.Sequential(*(make_piece(index, count) for index in range(count)))


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def make_batch(plan: Plan, step: int, pipelines: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all pipelines."""
    generator = torch.Generator().manual_seed(step)
    batch = torch.randint(TOKENS, (2, pipelines * SAMPLES * plan.problem.microbatches, 3), generator=generator)
    return batch[0], batch[1]


def weights_of(stages: Mapping[int, nn.Module]) -> list[nn.Parameter]:
    """All weights, each once."""
    return list(nn.ModuleList(stages.values()).parameters())


def gradients_of(stages: Mapping[int, nn.Module]) -> list[torch.Tensor]:
    """The gradients of all weights that have one."""
    return [weight.grad for weight in weights_of(stages) if weight.grad is not None]


def relative_error(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """The norm of the difference, in units of the expected one's; what is spread over processes is collected. Infinite if NaN."""
    assert found is not None and expected is not None
    whole = found.full_tensor() if hasattr(found, "full_tensor") else found
    error = float((whole - expected).norm() / expected.norm().clamp_min(torch.finfo(expected.dtype).tiny))
    return error if error == error else float("inf")  # of NaN and another error `max` may take the other


def said(error: BaseException) -> str:
    """An error in a line, as tests compare it."""
    return f"{type(error).__name__}: {error}"


@contextmanager
def noting(lines: list[Any], kind: type[BaseException] = SchedcError) -> Iterator[None]:
    """Go on after an error of this kind, which becomes a line."""
    try:
        yield
    except kind as error:
        lines.append(said(error))


def living_tensors() -> int:
    """How many tensors the process holds."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@cache
def grid(pipelines: int, ranks: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This process's pipeline and its replicas, as a job makes them."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (pipelines, ranks), mesh_dim_names=("data", "pipeline"))
    return mesh.get_group("pipeline"), mesh.get_group("data")


def load(plan: Any, stages: Mapping[int, nn.Module], **options: Any) -> Pipe:
    """`schedc.runtime.load` with the harness's loss function and limit, unless `options` say otherwise."""
    return schedc.runtime.load(plan, **{"stages": stages, "loss_fn": loss_fn, "timeout_s": 60, **options})


def on_forward(stages: Mapping[int, nn.Module], number: int, act: Callable[[], object]) -> None:
    """Let each of the stages do something as its forward of this number begins, counted from 1."""
    for stage in stages.values():
        forwards = count(1)

        def begin(module: nn.Module, inputs: Any, forwards: Any = forwards) -> None:
            if next(forwards) == number:
                act()

        stage.register_forward_pre_hook(begin)


def cannot_go_on() -> None:
    """Fail as a stage does."""
    raise ValueError("this stage cannot go on")


class Orders(Observer):
    """The ops of each step, by their names."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def begin_step(self, step: int, now_ns: int) -> None:
        self.steps.append([])

    def op(self, times: OpTimes) -> None:
        self.steps[-1].append(token(times.op))


class Descent:
    """An optimizer: plain descent, or with momentum; weights without a gradient stay as they are."""

    def __init__(self, weights: Iterable[torch.Tensor], momentum: float = 0.0) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(weights)}]
        self.momentum = momentum
        self.speeds: dict[torch.Tensor, torch.Tensor] = {}

    def step(self) -> None:
        with torch.no_grad():
            for weight in self.param_groups[0]["params"]:
                if weight.grad is not None:
                    speed = self.speeds.setdefault(weight, torch.zeros_like(weight)) if self.momentum else torch.zeros_like(weight)
                    weight.sub_(speed.mul_(self.momentum).add_(weight.grad), alpha=0.1)

    def zero_grad(self) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.grad = None


class Run:
    """What one process does: its place among the pipelines of a plan, its stages, and beside them the whole model.

    `stages` and `whole` may be changed, or replaced, before `load`.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        ranks = plan.problem.ranks
        self.pipelines = dist.get_world_size() // ranks
        self.pipeline, self.rank = divmod(dist.get_rank(), ranks)
        self.stages: dict[int, nn.Module] = make_stages(plan, self.rank)
        self.whole: Sequence[nn.Module] | nn.Sequential = whole_model(plan)
        self.whole_loss: Callable[[Any, torch.Tensor], torch.Tensor] = loss_fn
        self.sharded = plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage == 1
        self.pipe: Pipe

    @property
    def groups(self) -> dict[str, Any]:
        """What `load` takes where there are several pipelines."""
        if self.pipelines == 1:
            return {}
        return dict(zip(("pipeline_group", "data_parallel_group"), grid(self.pipelines, self.plan.problem.ranks), strict=True))

    def load(self, **options: Any) -> Pipe:
        """Load the plan, over all pipelines that there are."""
        self.pipe = load(self.plan, **{"stages": self.stages, **self.groups, **options})
        return self.pipe

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of all pipelines, for the plan that runs next."""
        return make_batch(self.pipe.plan, number, self.pipelines)

    def share(self, batch: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """This pipeline's part of it."""
        return [part.chunk(self.pipelines)[self.pipeline] for part in batch]

    def outputs(self, inputs: Any) -> Any:
        """What the whole model makes of them; its pieces may exchange tuples."""
        values = inputs
        for piece in self.whole:
            values = piece(*values) if isinstance(values, tuple) else piece(values)
        return values

    def step(self, number: int, of: Plan | None = None, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """A step of the pipe on a batch of this number, and of the whole model: the losses of both.

        `of` is the plan whose microbatches it has; None: the plan that runs next.
        """
        inputs, targets = make_batch(of or self.pipe.plan, number, self.pipelines)
        loss = self.pipe.step(*self.share((inputs, targets)), **options)
        expected = self.whole_loss(self.outputs(inputs), targets)
        torch.autograd.backward(expected)
        return loss, expected.detach()

    @property
    def whole_weights(self) -> list[nn.Parameter]:
        """All weights of the whole model, and of its loss function."""
        loss = [self.whole_loss] if isinstance(self.whole_loss, nn.Module) else []
        return list(nn.ModuleList([*self.whole, *loss]).parameters())

    @property
    def weights(self) -> list[torch.Tensor]:
        """What this process's optimizer has: its shards, or all weights of its stages, and of the loss function if it has it."""
        return [shard.weight for shard in self.pipe.shards()] if self.sharded else [*weights_of(self.pipe.modules)]

    def clear(self) -> None:
        """No gradients, in both."""
        for weight in (*self.weights, *self.whole_weights):
            weight.grad = None

    def descend(self) -> None:
        """A step of plain descent, in both."""
        Descent(dict.fromkeys((*self.weights, *self.whole_weights))).step()

    def same(self, stage: int, name: str) -> nn.Parameter:
        """The whole model's weight of this name in this stage."""
        return self.whole[piece_of(self.plan, stage)].get_parameter(name)

    def _pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        named = [(stage, *one) for stage, module in self.stages.items() for one in module.named_parameters()]
        return [(weight, self.same(stage, name)) for stage, name, weight in named]

    def gradient_errors(self) -> list[float]:
        """Of all weights of this process, or of its shards, whose weights have none then."""
        if not self.sharded:
            return [relative_error(weight.grad, same.grad) for weight, same in self._pairs()]
        assert all(weight.grad is None for weight, _ in self._pairs())
        errors = []
        for shard in self.pipe.shards():
            if not shard.name.startswith("loss_fn."):
                right = self.same(shard.stage, shard.name).grad
                assert right is not None
                errors.append(relative_error(shard.weight.grad, right.flatten()[shard.start : shard.stop]))
        return errors

    def weight_errors(self) -> list[float]:
        """Of all weights of this process's stages; under ZeRO 1, after `gather`."""
        return [relative_error(weight.detach(), same.detach()) for weight, same in self._pairs()]


EXACT = 1e-12
"""Relative errors in float64 are smaller, where two ways compute the same."""


def assert_exact(found: Iterable[Any]) -> None:
    """What each rank found is such an error, and none has said something else."""
    for error in found:
        assert isinstance(error, float) and error < EXACT, (error, getattr(error, "notes", ()))

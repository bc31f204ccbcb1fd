"""What the ops compute: stages forward and backward on PyTorch's autograd, the loss after a last stage.

Takes the rank's stages, the loss function and a step's microbatches; gives what crosses the boundaries, and adds to `.grad`. A loss
function that is a module has weights and buffers that belong to the last stage, after which it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import nn

from schedc.errors import InvalidInput
from schedc.ir import WHOLE, Kind, Op, Plan, Problem
from schedc.runtime.common.program import Instruction, Program, ends_of, replicas_of, starts_of
from schedc.runtime.stage.apart import check_stages, fsdp_roots
from schedc.runtime.stage.autograd import forget_cast_weights
from schedc.runtime.stage.batches import Microbatches, Name, inputs_of
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.losses import Seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from schedc.runtime.common.boundary import Value
    from schedc.runtime.stage.losses import Losses
    from schedc.runtime.stage.recompute import Buffers


class WithLoss(nn.Module):
    """A last stage and the loss function, whose weights are named `loss_fn.…` beside the stage's. It is not called."""

    def __init__(self, stage: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.loss_fn = loss

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As of any module, the stage's under the names that they have in it."""
        return ((name.removeprefix("stage."), weight) for name, weight in super().named_parameters(*arguments, **options))


def module_of(function: Any) -> nn.Module | None:
    """The module that a function is, or is a method of; None where it is neither."""
    if isinstance(function, partial):
        return module_of(function.func)
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None


def is_graph(problem: Problem, stages: Mapping[int, nn.Module]) -> bool:
    """Whether a rank's stages are called as those of a graph (`stage.graph`); the same on all ranks."""
    return bool(problem.edges) or any(hasattr(module, "losses_of_model") for module in stages.values())


def losses_of(problem: Problem, stages: Mapping[int, nn.Module]) -> Mapping[int, Sequence[Name]]:
    """Of each stage of the plan that computes losses, their names; a rank's stages say which these are, or it is the last ones."""
    said = (getattr(module, "losses_of_model", None) for module in stages.values())
    return next(filter(None, said), {stage: (stage,) for stage in sorted(ends_of(problem))})


def with_loss(problem: Problem, stages: Mapping[int, nn.Module], loss_fn: LossFn | None) -> Mapping[int, nn.Module]:
    """A rank's stages, the last ones with the loss function, where that has weights or buffers: what is trained.

    Raises:
        InvalidInput: a module with weights is the function of several losses of this rank.
    """
    trained, of_loss = dict(stages), dict[nn.Module, tuple[int, Name]]()
    for stage, names in losses_of(problem, stages).items():
        own = []
        for name in names if stage in stages else ():
            loss = module_of(by_name(loss_fn, name))
            if loss is not None and next(loss.parameters(), next(loss.buffers(), None)) is not None:
                own.append(loss)
                if is_graph(problem, stages) and of_loss.setdefault(loss, (stage, name)) != (stage, name):
                    raise InvalidInput(
                        f"the losses {of_loss[loss][1]} and {name} have one module with weights as loss_fn; give each its own"
                    )
        if own:
            trained[stage] = WithLoss(stages[stage], own[0] if len(own) == 1 else nn.ModuleList(own))
    return trained if trained != stages else stages


def loss_has_weights(modules: Iterable[nn.Module]) -> bool:
    """Whether the loss function of one of these modules of `with_loss` has weights."""
    return any(next(one.loss_fn.parameters(), None) is not None for one in modules if isinstance(one, WithLoss))


def by_name(given: Any, name: Name) -> Any:
    """Of a dict what has this name, or None; else what is given for all."""
    return given.get(name) if isinstance(given, Mapping) else given


_Loss: TypeAlias = "Callable[[Any, Any], torch.Tensor]"
LossFn: TypeAlias = "_Loss | Mapping[int, _Loss] | Mapping[str, _Loss]"
"""What takes a last stage's output and the microbatch's targets; by name, where stages are a graph with several losses."""
NOTHING = Microbatches((), ())


@dataclass(eq=False)
class Training:
    """The work of one rank's ops."""

    block: ClassVar[Any] = StageBlock
    """What it makes of a stage and microbatch."""
    plan: Plan
    """Whose parts and paths these are."""
    program: Program
    """Of this rank."""
    stages: Mapping[int, nn.Module]
    """This rank's."""
    loss_fn: LossFn | None
    """Takes a last stage's output and the microbatch's targets."""
    _: KW_ONLY
    recompute: bool | Collection[int] = False
    """The stages whose F runs again before their backward, besides those of the plan; True: all."""
    replicas: int = 1
    """Of how many pipelines the gradients are going to be summed; each gives its share of their mean."""
    drawn: Callable[[Op, Callable[..., Any]], Callable[..., Any]] | None = None
    """Makes the work of an F one that draws random numbers of its own; None: it draws what comes."""

    def __post_init__(self) -> None:
        """Look at what does not change from step to step."""
        problem, stages = self.plan.problem, self.stages
        self.modules = with_loss(problem, stages, self.loss_fn)
        """What is trained: the stages, the last ones with the loss function, where that has weights or buffers."""
        self.sharded = {stage: roots for stage, module in self.modules.items() if (roots := fsdp_roots(module))}
        """Of the stages that FSDP2 is around, the outermost such modules."""
        asked = stages if self.recompute is True else self.recompute or ()
        chosen = [stage for stage in stages if stage in asked or problem.stages[stage].recompute]
        self._recomputed: dict[int, Buffers] = {}
        if chosen:
            from schedc.runtime.stage.recompute import Buffers

            self._recomputed = {stage: Buffers(self.modules[stage]) for stage in chosen}
        self._called = self._callables()
        self._split_stages = {stage for stage, _ in self.program.split}
        if self._split_stages and "torch._dynamo" in sys.modules:  # a compiled backward must leave to W what B has kept
            torch._functorch.config.donated_buffer = False
        self._summed = self.replicas > 1 or bool(replicas_of(problem))
        count = problem.microbatches * self.replicas
        self._even = [Seeds(1 / count, f"1/{count}")] * problem.microbatches
        self._shares = {(parts.kind, parts.stage): parts.shares for parts in self.plan.parts}
        self._first, self._last = starts_of(problem), ends_of(problem)
        self._blocks: dict[tuple[int, int], StageBlock] = {}
        self._seeds: dict[tuple[int, int], Value] = {}
        self._starts: dict[tuple[int, int], float] = {}
        self._batch = NOTHING
        self._losses: Losses | None = None

    def begin(self, batch: Microbatches, losses: Losses, shares: Sequence[float] | None = None) -> None:
        """Before a step.

        The shares are of each microbatch in what is differentiated; None: they are even.

        Raises:
            Unsupported: a stage has got something since `load` with which its gradients would be wrong.
        """
        check_stages(self.modules, split=self._split_stages, summed=self._summed, sharded=self.sharded)
        self._batch = batch
        self._losses = losses
        self._shares_of_loss = self._even if shares is None else [Seeds(share, f"{share:.6g}") for share in shares]
        forget_cast_weights()

    def finish(self) -> None:
        """After a step: let go of its batch.

        Raises:
            Unsupported: a stage that ran twice on an accelerator has given something else in its second forward.
        """
        self._let_go()
        for buffers in self._recomputed.values():
            buffers.check_alike()

    def close(self) -> None:
        """Let go of everything."""
        self._let_go()
        self._blocks.clear()
        self._seeds.clear()

    def _let_go(self) -> None:
        self._batch = NOTHING
        self._losses = None

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """The op itself, on what it takes from the stage before; what it gives to the one after.

        Only W can be cut: of F, B and BW in parts, the first does the work of all, and the last hands the result on.
        """
        op = instruction.op
        key = op.stage, op.microbatch
        if op.kind is Kind.W:
            self._blocks[key].backward_weight(*((0, (1,)) if op.part == WHOLE else (op.part, self._shares[Kind.W, op.stage])))
        elif instruction.first:
            value = values[0] if values else ()
            if op.kind is Kind.F:
                self._forward(op, value)
            elif op.kind is Kind.B:
                self._blocks[key].backward_input(self._seeds.pop(key, value))
            else:
                self._blocks[key].backward(self._seeds.pop(key, value))
        if not instruction.last:
            return ()
        given = self._blocks[key].take()
        if op.kind in (Kind.W, Kind.BW):
            del self._blocks[key]
        return (given,) if instruction.gives else ()

    def _forward(self, op: Op, value: Value) -> None:
        """F, with the loss after a last stage."""
        key = op.stage, op.microbatch
        last = op.stage in self._last
        work = partial(self._loss, op) if last else self._stage(op)
        work = work if self.drawn is None else self.drawn(op, work)
        source = inputs_of(self._batch.inputs[op.microbatch]) if op.stage in self._first else value
        self._blocks[key] = block = self.block(work, [one for one in source if one is not None], **self._options_of(op))
        if last:
            loss, *outputs = block.take()
            assert loss is not None
            self._seeds[key] = (self._seed(op, loss, self._starts.pop(key), source), *[None] * len(outputs))

    def _seed(self, op: Op, loss: torch.Tensor, start: float, source: Value) -> torch.Tensor:
        """Take the loss that F has computed of `source`; the gradient from which its backward starts."""
        assert self._losses is not None
        if not loss.requires_grad and any(
            one is not None and one.requires_grad for one in (*source, *self.stages[op.stage].parameters())
        ):
            raise InvalidInput(
                f"stage {op.stage}: found a loss without a graph, from which no weight gets a gradient; expected one that"
                " depends on the stage's output: not detached, not made under no_grad"
            )
        self._losses.add(op.microbatch, loss)
        return self._shares_of_loss[op.microbatch].seed(loss, start)

    def _callables(self) -> Mapping[int, Callable[..., Any]]:
        """The stages, to be called with what is theirs."""
        return self.stages

    def _stage(self, op: Op) -> Callable[..., Any]:
        """What is called for an F."""
        stage, batch = self._called[op.stage], self._batch
        return partial(stage, **batch.kwargs_of(op.stage, op.microbatch)) if op.stage in batch.kwargs else stage

    def _options_of(self, op: Op) -> dict[str, Any]:
        """Of its block."""
        return {"split": (op.stage, op.microbatch) in self.program.split, "recompute": self._recomputed.get(op.stage)}

    def _loss(self, op: Op, *value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A last stage, and the loss of its microbatch; of what has few digits, a second forward is known by the output, too."""
        assert self._batch.targets is not None
        output = self._stage(op)(*value)
        self._batch.keep(op.microbatch, output)
        targets, shares = self._batch.targets[op.microbatch], self._shares_of_loss[op.microbatch]
        loss, start = shares.loss(self._batch.with_kwargs(self.loss_fn, op.microbatch), output, targets)
        self._starts[op.stage, op.microbatch] = start
        tells_little = op.stage in self._recomputed and loss.itemsize < 4 and isinstance(output, torch.Tensor)
        return (loss, output.detach()) if tells_little else (loss,)

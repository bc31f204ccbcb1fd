"""Stages that are a graph: how one is called that takes values of several others, gives several, or computes several losses.

Takes the rank's stages, loss functions and a step's microbatches by name; gives a value for each message of an op. A block's inputs
are the tensors of all its edges, one after another; its outputs are its losses, then its values. Only jobs with a graph import it.

How a stage is called, and what it gives, is in docs/graphs.md. What `build_stages` makes of layers takes a tuple of tensors for
each edge, and has two attributes more: `begins`, the names of the batches that it gets as a dict `inputs`, and `losses_of_model`,
the names of the losses of all stages, by stage; it gives its values and what its losses are computed of in one dict. The state of a
slice would be one more value: of a message from the stage to itself, behind those of the edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch

from schedc.errors import InvalidInput
from schedc.ir import Kind
from schedc.runtime.common.boundary import Value, tensors_of
from schedc.runtime.stage.batches import Batches, Microbatch, Microbatches, Name, cut, inputs_of
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.training import Training, by_name, losses_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from schedc.ir import Op, Problem
    from schedc.runtime.common.program import Instruction, NeededMessage


class StageCall:
    """How one stage is called, and what it gives."""

    def __init__(self, problem: Problem, stage: int, module: Any, losses: Sequence[Name]) -> None:
        """Look at the edges of the stage; `losses` are the names of its losses."""
        edges = problem.edges_of(0)
        self.stage, self.module, self.losses = stage, module, tuple(losses)
        self.sources = [edge.source for edge in edges if edge.destination == stage]
        self.with_gradient = {(edge.source, edge.destination) for edge in edges if edge.has_gradient}
        self.value_to = {edge.destination: edge.value for edge in edges if edge.source == stage}
        """By the stage that takes it, the number of a value."""
        self.values = sorted({*self.value_to.values()})
        self._named = hasattr(module, "begins")
        self.begins: tuple[Name, ...] = tuple(module.begins) if self._named else () if self.sources else (stage,)
        """The names of the batches that it takes."""
        takes = getattr(module, "takes_targets", False)
        self._own_targets: Name | None = None if not takes else takes if isinstance(takes, str) else stage
        self.targets: tuple[Name, ...] = self.losses if self._own_targets is None else (*self.losses, self._own_targets)
        """The names of the targets that its losses take, and it does itself: those of its number, or of a module that it names."""

    def __call__(
        self,
        taken: Sequence[Sequence[torch.Tensor]],
        batch: Mapping[Name, Microbatch],
        targets: Mapping[Name, Microbatch],
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[dict[Name, Any], dict[int, tuple[torch.Tensor, ...]]]:
        """Call it for a microbatch.

        Args:
            taken: the tensors of each edge in, in the order of the edges.
            batch: of the microbatch, by the names in `begins`.
            targets: by those in `targets`.
            kwargs: what it gets by name besides.

        Returns:
            By name, what its losses are computed of; and its values by number.

        Raises:
            InvalidInput: it gives something else, a value that requires grad over an edge without gradient, or integers over one
                with it.
        """
        named: dict[str, object] = {**kwargs}
        positional: Sequence[Any] = taken
        if self._named:
            named["inputs"] = {name: inputs_of(batch[name]) for name in self.begins}
        else:
            positional = inputs_of(batch[self.stage]) if self.begins else [tensor for each in taken for tensor in each]
        if self._own_targets is not None:
            named["targets"] = targets[self._own_targets]
        found = self.module(*positional, **named)
        wanted: list[Name] = [*self.losses, *self.values]
        if len(wanted) == 1 and not (isinstance(found, Mapping) and (self.values or wanted[0] in found)):
            found = {wanted[0]: found}
        if not isinstance(found, Mapping) or not found.keys() >= {*wanted}:
            what = f"a dict with {[*found]}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise InvalidInput(
                f"stage {self.stage} gives {what}, expected a dict with {wanted}: its values by number, as edges have them"
            )
        values = {value: tensors_of(found[value], f"value {value} of stage {self.stage}") for value in self.values}
        for destination, value in self.value_to.items():
            has_gradient = (self.stage, destination) in self.with_gradient
            if has_gradient and not any(tensor.is_floating_point() or tensor.is_complex() for tensor in values[value]):
                raise InvalidInput(
                    f"stage {self.stage} gives stage {destination} no tensor that can have a gradient over an edge with one;"
                    " give the edge none (gradient = false)"
                )
            if not has_gradient and any(tensor.requires_grad for tensor in values[value]):
                raise InvalidInput(
                    f"stage {self.stage} gives stage {destination} a tensor that requires grad over an edge without gradient;"
                    " detach it, or give the edge one (gradient = true)"
                )
        return {name: found[name] for name in self.losses}, values


def calls_of(problem: Problem, stages: Mapping[int, Any]) -> dict[int, StageCall]:
    """How each stage of a rank is called: a module, or what stands for it."""
    names = losses_of(problem, stages)
    return {stage: StageCall(problem, stage, module, names.get(stage, ())) for stage, module in stages.items()}


def cut_by_name(
    calls: Collection[StageCall], inputs: Batches | None, targets: Batches | None, microbatches: int, rank: int, *, bare: bool
) -> Microbatches:
    """A rank's microbatches, by the names of what takes them.

    `inputs` and `targets` are a batch for all that take one, or a dict of batches by name; `bare`: targets may be missing.

    Raises:
        InvalidInput: as `batches.cut`.
    """

    def named(kind: str, given: Batches | None, names: Iterable[Name]) -> Iterator[tuple[Name, str, Batches | None]]:
        for name in names:
            what = f"{kind} of {name if isinstance(name, str) else f'stage {name}'}"
            yield name, what, by_name(given, name)

    begins = named("inputs", inputs, (name for call in calls for name in call.begins))
    found = {name: cut(batch, microbatches, what, rank) for name, what, batch in begins}
    bare = bare and targets is None
    ends = named("targets", targets, (name for call in calls for name in call.targets if not (bare and name in call.losses)))
    return Microbatches((), None if bare else (), found, {name: cut(each, microbatches, what, rank) for name, what, each in ends})


class GraphBlock(StageBlock):
    """The live state of one stage and microbatch, and how its tensors belong to edges."""

    sizes: Sequence[int]
    """How many tensors came over each edge in."""
    counts: Mapping[int, int]
    """By number, how many tensors each value has."""
    seeds: Sequence[torch.Tensor]
    """The gradients of the losses."""
    outputs: Sequence[Value]
    """The values, until F has ended."""
    others: int
    """How many outputs it has behind losses and values."""


class GraphTraining(Training):
    """The work of one rank's ops, where stages are a graph."""

    block = GraphBlock

    def __post_init__(self) -> None:
        """Look at the edges, too."""
        super().__post_init__()
        self.calls = calls_of(self.plan.problem, self._called)
        self._several = sum(map(len, losses_of(self.plan.problem, self.stages).values())) > 1

    def cut_by_name(self, inputs: Batches | None, targets: Batches | None, microbatches: int, *, bare: bool) -> Microbatches:
        """As the function of this name, of this rank."""
        return cut_by_name(self.calls.values(), inputs, targets, microbatches, self.program.rank, bare=bare)

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        """The op itself; what it gives, a value for each message."""
        op, key = instruction.op, (instruction.op.stage, instruction.op.microbatch)
        if op.kind is Kind.W:
            return super().run(instruction, ())
        if instruction.first and op.kind is Kind.F:
            self._forward_of(op, values)
        block, call = cast("GraphBlock", self._blocks[key]), self.calls[op.stage]
        if instruction.first and op.kind is not Kind.F:
            gradients = _gradients_of(block, call, instruction.needs, values)
            block.backward_input(gradients) if op.kind is Kind.B else block.backward(gradients)
        if not instruction.last:
            return ()
        if op.kind is Kind.F:
            parts, block.outputs = dict(zip(call.values, block.outputs, strict=True)), ()
            return [parts[call.value_to[gift.message.destination]] for gift in instruction.gives]
        parts = dict(zip(call.sources, _parts(block.take(), block.sizes), strict=True))
        if op.kind is Kind.BW:
            del self._blocks[key]
        return [parts[gift.message.source] for gift in instruction.gives]

    def _forward_of(self, op: Op, values: Sequence[Value]) -> None:
        """F, with the losses after it."""
        key, call, microbatch, sizes = (op.stage, op.microbatch), self.calls[op.stage], op.microbatch, [*map(len, values)]
        taken = tuple(
            tensor.detach().requires_grad_(tensor.requires_grad and (source, op.stage) in call.with_gradient)
            for source, value in zip(call.sources, values, strict=True)
            for tensor in value
            if tensor is not None
        )
        versions = [tensor._version for tensor in taken]
        starts: list[float] = []
        counts: dict[int, int] = {}

        def work(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            batch, targets, shares = self._batch.inputs_of, self._batch.targets_of, self._shares_of_loss[microbatch]
            own = {name: targets[name][microbatch] for name in call.targets}
            begins = {name: batch[name][microbatch] for name in call.begins}
            ends, given = call(_parts(inputs, sizes), begins, own, self._batch.kwargs_of(op.stage, microbatch))
            for name, output in ends.items():
                self._batch.keep(microbatch, output, name if self._several else None)
            loss_fns = {name: self._batch.with_kwargs(by_name(self.loss_fn, name), microbatch) for name in ends}
            found = [shares.loss(loss_fns[name], output, own[name]) for name, output in ends.items()]
            starts[:], losses = [start for _, start in found], [loss for loss, _ in found]
            counts.update((value, len(tensors)) for value, tensors in given.items())
            more = [output.detach() for output in ends.values() if isinstance(output, torch.Tensor)]
            tell_little = op.stage in self._recomputed and any(loss.itemsize < 4 for loss in losses)
            return (*losses, *(tensor for tensors in given.values() for tensor in tensors), *(more if tell_little else ()))

        drawn = work if self.drawn is None else self.drawn(op, work)
        self._blocks[key] = block = self.block(drawn, taken, **self._options_of(op))
        if [tensor._version for tensor in taken] != versions:
            raise InvalidInput(f"stage {op.stage} changes what it takes in place, which other stages may take, too; let it copy it")
        losses, *parts, others = _parts(block.take(), [len(starts), *counts.values(), -1])
        block.sizes, block.counts, block.outputs, block.others = sizes, counts, parts, len(others)
        block.seeds = [self._seed(op, loss, start, taken) for loss, start in zip(losses, starts, strict=True)]


def _gradients_of(block: GraphBlock, call: StageCall, needs: Sequence[NeededMessage], values: Sequence[Value]) -> Value:
    """Of all outputs of a block: of its losses, and of each value the sum of those that have come for its edges."""
    sums: dict[int, Value] = {}
    for need, value in zip(needs, values, strict=True):
        number = call.value_to[need.message.destination]
        if value and number in sums:
            sums[number] = tuple(
                other if one is None else one if other is None else one + other
                for one, other in zip(sums[number], value, strict=True)
            )
        elif value:
            sums[number] = value
    given = (sums.get(number, (None,) * count) for number, count in block.counts.items())
    return (*block.seeds, *(gradient for each in given for gradient in each), *[None] * block.others)


def _parts(values: Sequence[Any], sizes: Sequence[int]) -> list[tuple[Any, ...]]:
    """These many values each; below 0: all that are left."""
    left = iter(values)
    return [tuple(left if size < 0 else islice(left, size)) for size in sizes]

"""Microbatches in slices of their sequence: how they are cut, and the state that each slice leaves to the next on a stage.

A stage is called `stage(x, state=…)` and gives `(y, state)`: None for the first slice of a microbatch, then what the slice before
has given, any nest of tensors in tuples, lists and dicts (keys and values). To a block the state's tensors are inputs behind those
of the stage, and outputs behind its own. So their gradients come back: backwards run against the slices' order. All this stays on
the rank and in its training; plans and wires know nothing of it. Only jobs with slices import it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from schedc.errors import InvalidInput
from schedc.runtime.common.boundary import Value, tensors_of
from schedc.runtime.stage.batches import Microbatches
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from schedc.ir import Op, Problem
    from schedc.runtime.stage.batches import Microbatch
    from schedc.runtime.stage.losses import Losses
    from schedc.runtime.stage.recompute import Buffers

BY_TOKEN = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)
"""Modules of torch that compute each token by itself, so that slices need no state of them."""


def in_slices(whole: Microbatches, lengths: Sequence[int], dim: int, rank: int) -> Microbatches:
    """What a rank has of a batch, each microbatch in slices, in the order of the plan's microbatches.

    All tensors have the sequence, along `dim`; lengths are in tokens, and equal ones divide a sequence of any length.

    Raises:
        InvalidInput: a tensor has not as many tokens.
    """

    def cut(name: str, microbatches: Sequence[Microbatch]) -> Sequence[Microbatch]:
        found: list[Microbatch] = []
        for number, microbatch in enumerate(microbatches):
            tensors = tensors_of(microbatch, f"rank {rank}: a microbatch of {name}")
            slices = zip(*(torch.split(one, lengths_of(one, f"{name}, microbatch {number}"), dim) for one in tensors), strict=True)
            found += [one[0] if isinstance(microbatch, torch.Tensor) else one for one in slices]
        return found

    def lengths_of(tensor: torch.Tensor, what: str) -> list[int]:
        tokens, even = tensor.shape[dim] if tensor.dim() > dim else 0, len({*lengths}) == 1
        if not tokens or (tokens % len(lengths) if even else tokens != sum(lengths)):
            expected = f"a multiple of {len(lengths)} tokens" if even else f"{sum(lengths)} tokens, in slices of {[*lengths]},"
            raise InvalidInput(
                f"rank {rank}: {what}: found the shape {list(tensor.shape)}, expected {expected} along dimension {dim}"
                " (the sequence_dim given to load)"
            )
        return [tokens // len(lengths)] * len(lengths) if even else [*lengths]

    def named(what: str, microbatches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{} for _ in range(len(microbatches) * len(lengths))]
        for name in microbatches[0] if microbatches else ():
            parts = [one[name] for one in microbatches]
            has_sequence = all(isinstance(part, torch.Tensor) and part.dim() > dim for part in parts)
            for at, value in enumerate(cut(f"{what}, {name!r}", parts) if has_sequence else (p for p in parts for _ in lengths)):
                found[at][name] = value
        return found

    return Microbatches(
        cut("inputs", whole.inputs),
        None if whole.targets is None else cut("targets", whole.targets),
        {name: cut(f"inputs of {name}", batch) for name, batch in whole.inputs_of.items()},
        {name: cut(f"targets of {name}", batch) for name, batch in whole.targets_of.items()},
        {stage: named(f"kwargs of stage {stage}", given) for stage, given in whole.kwargs.items()},
        named("loss_kwargs", whole.loss_kwargs),
    )


def takes_state(module: nn.Module, what: str) -> bool:
    """Whether a stage or a layer is called with a state: it has a parameter `state`, and not `takes_state = False`.

    Raises:
        InvalidInput: it has neither, and may compute tokens by those before them; `what` it is, for the message.
    """
    if isinstance(module, BY_TOKEN) or not getattr(module, "takes_state", True):
        return False
    if "state" not in inspect.signature(module.forward).parameters:
        raise InvalidInput(
            f"{what} is a {type(module).__name__}, whose forward takes no state, and microbatches are in slices; expected forward("
            "x, state) that gives (y, state), or takes_state = False where it computes each token by itself"
        )
    return True


def check_slices(stages: Mapping[int, nn.Module], sequence_dim: int) -> None:
    """Refuse stages of a rank that cannot run in slices.

    Raises:
        InvalidInput: as `takes_state`; or the dimension of the sequence is that of the samples.
    """
    for stage, module in stages.items():
        takes_state(module, f"stage {stage}")
    if sequence_dim < 1:
        raise InvalidInput(f"load was given sequence_dim={sequence_dim}; expected 1 or more, as dimension 0 has the samples")


class State(NamedTuple):
    """What one slice leaves to the next."""

    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[object, ...]
    """All that is in it; `State` itself where a tensor is."""
    nest: TreeSpec
    """What these lie in."""

    @classmethod
    def of(cls, state: object) -> State:
        """A state as a stage gives it."""
        leaves, nest = tree_flatten(state)
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return cls(tensors, tuple(cls if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), nest)

    def whole(self) -> Any:
        """As the stage has given it."""
        tensors = iter(self.tensors)
        return tree_unflatten([next(tensors) if leaf is State else leaf for leaf in self.leaves], self.nest)


class StageStates:
    """One stage in slices, to be called as if it had no state, and the states between its blocks."""

    def __init__(self, stage: int, module: nn.Module, slices: int) -> None:
        """Take the stage and how many slices a microbatch has.

        Raises:
            InvalidInput: as `takes_state`.
        """
        self.stage, self.module, self.slices = stage, module, slices
        self.takes = takes_state(module, f"stage {stage}")
        self.given: dict[int, State] = {}
        """By slice (the plan's microbatch), what its F has given, until the next takes it."""
        self.back: dict[int, Value] = {}
        """By slice, the gradients of the tensors that it has given, until its backward takes them."""
        self.taken: State | None = None
        """What the call under way gets."""
        self.made: State | None = None
        """What it has made of it."""

    def __getattr__(self, name: str) -> Any:
        """As of the stage."""
        return getattr(self.module, name)

    def forward_of(self, microbatch: int) -> Callable[..., Any]:
        """What calls the stage for a slice, where no backward follows."""

        def forward(*values: Any, **named: Any) -> Any:
            self.taken = self.given.pop(microbatch - 1, None)
            output = self(*values, **named)
            made, self.taken, self.made = self.made, None, None
            if made is not None and (microbatch + 1) % self.slices:
                self.given[microbatch] = made
            return output

        return forward

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call the stage with the state that is its turn.

        Raises:
            InvalidInput: it gives no pair.
        """
        if not self.takes:
            return self.module(*values, **named)
        found = self.module(*values, state=None if self.taken is None else self.taken.whole(), **named)
        if not isinstance(found, tuple) or len(found) != 2:
            raise InvalidInput(
                f"stage {self.stage} gives {_shown(found)}; expected (y, state), as microbatches are in slices: what the"
                " next stage gets, and what the next slice gets"
            )
        output, state = found
        self.made = State.of(state)
        return output

    def clear(self) -> None:
        """Let go of everything."""
        self.given.clear()
        self.back.clear()
        self.taken = self.made = None


def _shown(found: object) -> str:
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"


def states_of(problem: Problem, stages: Mapping[int, nn.Module]) -> dict[int, StageStates]:
    """Of the stages of a rank."""
    return {stage: StageStates(stage, module, len(problem.slices)) for stage, module in stages.items()}


class WithState(StageBlock):
    """A block of one slice; mixed with another kind of block, it comes before that."""

    def __init__(
        self,
        work: Callable[..., object],
        inputs: Sequence[torch.Tensor],
        *,
        split: bool,
        recompute: Buffers | None,
        states: StageStates,
        microbatch: int,
    ) -> None:
        """Run F, whose `work` calls `states`; the rest is as for `StageBlock`."""
        own = len(inputs)
        self._states, self._microbatch, self._of_stage = states, microbatch, own
        before = states.given.pop(microbatch - 1) if states.takes and microbatch % states.slices else None
        after: State | None = None

        def with_state(*values: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            nonlocal after
            states.taken = None if before is None else before._replace(tensors=values[own:])
            outputs = tensors_of(work(*values[:own]))
            after, states.taken, states.made = states.made, None, None
            if after is None or (microbatch + 1) % states.slices == 0:  # nobody wants it
                after = None
                return outputs
            tensors, after = after.tensors, after._replace(tensors=())
            return (*outputs, *tensors)

        tensors = () if before is None else before.tensors
        super().__init__(with_state, [*inputs, *tensors], split=split, recompute=recompute)
        left = 0 if after is None else after.leaves.count(State)
        self._given = len(self._result) - left
        if after is not None:
            own_states = tuple(tensor for tensor in self._result[self._given :] if tensor is not None)  # all are, of an F
            states.given[microbatch] = after._replace(tensors=own_states)
            self._result = self._result[: self._given]

    def backward(self, gradients: Value) -> None:
        """As `StageBlock.backward`."""
        super().backward(self._with_back(gradients))
        self._leave_back()

    def backward_input(self, gradients: Value) -> None:
        """As `StageBlock.backward_input`."""
        super().backward_input(self._with_back(gradients))
        self._leave_back()

    def _with_back(self, gradients: Value) -> Value:
        """The gradients of all outputs, with those of the state from the slice behind."""
        return (*(gradients or (None,) * self._given), *self._states.back.pop(self._microbatch, ()))

    def _leave_back(self) -> None:
        """Of the gradients of all inputs, leave those of the state to the slice before."""
        if len(self._result) > self._of_stage:
            self._states.back[self._microbatch - 1] = self._result[self._of_stage :]
            self._result = self._result[: self._of_stage]


class _Sliced(Training):
    """The work of one rank's ops, where microbatches are in slices; mixed with another kind of training, it comes before that."""

    def begin(self, batch: Microbatches, losses: Losses, shares: Sequence[float] | None = None) -> None:
        """As `Training.begin`; of a step that has failed nothing is left."""
        self._forget()
        super().begin(batch, losses, shares)

    def close(self) -> None:
        """As `Training.close`."""
        self._forget()
        super().close()

    def _forget(self) -> None:
        for states in self._states.values():
            states.clear()

    def _callables(self) -> Mapping[int, Callable[..., Any]]:
        self._states = states_of(self.plan.problem, self.stages)
        return self._states

    def _options_of(self, op: Op) -> dict[str, Any]:
        return {**super()._options_of(op), "states": self._states[op.stage], "microbatch": op.microbatch}


def sliced(kind: type[Training]) -> type[Training]:
    """That kind of training, for microbatches in slices."""
    return type(f"Sliced{kind.__name__}", (_Sliced, kind), {"block": type("SliceBlock", (WithState, kind.block), {})})

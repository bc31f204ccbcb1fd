"""One stage's work for one microbatch: F, then B and W, or BW, on PyTorch's autograd.

Takes the stage and its inputs; gives the outputs, then the inputs' gradients, then adds the weights' gradients to `.grad`. B
computes no gradient of a weight and W none of an activation, with two exceptions: B computes the gradients of weights that a stage
uses in several places, and those that a function of the user's own computes together with its input's (`frontier`). Autograd's
calls do it: gradient edges, node hooks, saved-tensor hooks, and nodes that are called (`halves`).

Hooks act once. One at an activation where W begins is called in B, and in W, too, where autograd runs that node again, with the
gradient that it has not changed.

What B and W apart do (`splitting`) is imported by the first block whose backward is split.

Between B and W the block holds what W reads and the gradients where W begins; after W or BW it holds nothing. A block that
recomputes holds its inputs alone between F and its backward, which runs F again first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import get_gradient_edge

from schedc.errors import InvalidInput
from schedc.runtime.common.boundary import Value, handed_over, tensors_of
from schedc.runtime.stage.autograd import NOTHING, arrived_at, edge_of, outside_autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

    from schedc.runtime.stage.recompute import Buffers, ForwardAgain
    from schedc.runtime.stage.splitting.halves import WeightWork
    from schedc.runtime.stage.splitting.kept import SavedTensors


class StageBlock:
    """The live state of one stage and microbatch."""

    def __init__(
        self, work: Callable[..., object], inputs: Sequence[torch.Tensor], *, split: bool, recompute: Buffers | None = None
    ) -> None:
        """Run F.

        Args:
            work: the stage, with the loss after it on a last stage; takes the inputs, gives a tensor or a tuple of tensors.
            inputs: tensors without a graph, the block's own from now on. Those that require grad get a gradient.
            split: whether B and W will run apart.
            recompute: the stage's buffers, where F keeps the inputs alone and runs again before the backward; None: it does not.

        Raises:
            InvalidInput: the stage gives something else than tensors.
        """
        self._inputs = tuple(inputs)
        self._split = split
        self._saved: SavedTensors | None = None
        self._roots: tuple[GradientEdge | None, ...] = ()
        self._replay: ForwardAgain | None = None
        self._weight_work: list[WeightWork] = []
        if recompute is not None:
            from schedc.runtime.stage.recompute import ForwardAgain, saving_nothing

            self._replay = ForwardAgain(work, self._inputs, recompute)
            with torch.enable_grad(), saving_nothing():
                outputs = tensors_of(work(*self._aliases()))
            self._replay.ran(outputs)
        else:
            outputs = self._forward(work)
        if not outputs:
            raise InvalidInput("what a stage gives must be a tensor or a tuple of tensors; found an empty tuple")
        self._result: Value = handed_over(outputs)

    def take(self) -> Value:
        """What the last op has given, which is not held any longer: F's outputs, or B's or BW's gradients of the inputs.

        The outputs require grad where they depend on something that does. There is a gradient for each input that requires grad,
        zeros where no output depends on it, and None for the others.
        """
        result, self._result = self._result, ()
        return result

    def backward(self, gradients: Value) -> None:
        """Run BW: add all weights' gradients, and give the inputs'.

        Args:
            gradients: of the outputs; where there is None, or at the end nothing, none flows.
        """
        self._run_again()
        roots, seeds = arrived_at(self._roots, gradients)
        self._roots = ()
        if roots:
            with outside_autocast():
                torch.autograd.backward(roots, seeds)
        self._result = tuple([_gradient(tensor, tensor.grad) for tensor in self._inputs])
        self._inputs = ()

    def backward_input(self, gradients: Value) -> None:
        """Run B: give the gradients of the inputs, and release what only B needed. The argument is as in `backward`."""
        self._run_again()
        saved = self._saved
        roots, seeds = arrived_at(self._roots, gradients)
        self._roots = ()
        wanting = [number for number, tensor in enumerate(self._inputs) if tensor.requires_grad]
        given: dict[int, torch.Tensor | None] = {}
        if roots and saved is not None:
            from schedc.runtime.stage.splitting.halves import backward_of_inputs

            sources = [get_gradient_edge(self._inputs[number]) for number in wanting]
            found, self._weight_work = backward_of_inputs(roots, seeds, sources, saved)
            given = dict(zip(wanting, found, strict=True))
        self._result = tuple(_gradient(tensor, given.get(number), self._weight_work) for number, tensor in enumerate(self._inputs))
        for number in wanting:  # the graph holds it to the end; what W reads of it is kept apart, or is the stage's alias
            self._inputs[number].data = self._inputs[number].new_empty(0)
        self._inputs = ()

    def backward_weight(self, part: int = 0, shares: Sequence[int] = (1,)) -> None:
        """Run W, or one part of it: add the gradients of the weights.

        Args:
            part: which part.
            shares: the relative time of each part; the joints are dealt to the parts by the size of their weights.
        """
        if self._weight_work:
            from schedc.runtime.stage.splitting.halves import backward_of_weights

            backward_of_weights(self._weight_work, part, shares)
        if part == len(shares) - 1:
            self._weight_work.clear()

    def _forward(self, work: Callable[..., object]) -> tuple[torch.Tensor, ...]:
        """F with a graph; the outputs."""
        if self._split:
            from schedc.runtime.stage.splitting.kept import SavedTensors

            self._saved = SavedTensors()
        with torch.enable_grad(), NOTHING if self._saved is None else self._saved.recording():
            outputs = tensors_of(work(*self._aliases()))
        self._roots = tuple([edge_of(tensor) for tensor in outputs])
        return outputs

    def _aliases(self) -> list[torch.Tensor]:
        """The inputs as the stage gets them: B takes the memory of the graph's own, not of what the stage has kept for W."""
        return [tensor.view_as(tensor) if self._split and tensor.requires_grad else tensor for tensor in self._inputs]

    def _run_again(self) -> None:
        """Where F has kept nothing, run it once more, this time with a graph."""
        replay, self._replay = self._replay, None
        if replay is not None:
            with replay.as_before(self._inputs):
                replay.ran_again(self._forward(replay.work))


def _gradient(tensor: torch.Tensor, found: torch.Tensor | None, left: Sequence[WeightWork] | None = None) -> torch.Tensor | None:
    """What goes back for an input, in memory of its own.

    Of the same memory autograd may have made a weight's `.grad`, or W may do so: the next microbatch adds to that in place, while
    this gradient is on its way. Others that use the storage are counted; after B, where `left` is left for W, only W's matter.
    """
    if found is None:
        return torch.zeros_like(tensor) if tensor.requires_grad else None
    storage = found.untyped_storage()
    shared = torch._C._storage_Use_Count(storage._cdata) > 2  # 2: `found`, `storage`
    if left is not None:
        arrived = [one for work in left for one in work.arrived if one is not None]
        shared = any(
            one is found or (shared and one.layout is torch.strided and one.untyped_storage()._cdata == storage._cdata)
            for one in arrived
        )
    return found.clone() if shared else found

"""One stage's work for one microbatch: F, then B and W, or BW, on PyTorch's autograd.

Takes the stage and its inputs; gives the outputs, then the inputs' gradients, then adds the weights' gradients to `.grad`. B
computes no gradient of a weight and W none of an activation, with two exceptions: B computes the gradients of weights that a stage
uses in several places, and those that a function of the user's own computes together with its input's (`frontier`). Public autograd
calls do it: gradient edges, node hooks, saved-tensor hooks.

Hooks act once. One at an activation where W begins is called in B and in W, each time with the gradient that it has not changed.

What B and W apart need is imported by the first block whose backward is split.

Between B and W the block holds what W reads and the gradients where W begins; after W or BW it holds nothing. A block that
recomputes holds its inputs alone between F and its backward, which runs F again first.

Autocast around a pipe's step holds for F, which runs in the thread that called `step`, and not for the backwards: the types of a
backward are those of its forward, and torch advises against running it under autocast.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import GraphExecGroup

from schedc.errors import InvalidInput
from schedc.runtime.common.boundary import Value, handed_over, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.runtime.stage.recompute import Buffers, ForwardAgain
    from schedc.runtime.stage.splitting.frontier import Cut, Joint
    from schedc.runtime.stage.splitting.kept import SavedTensors


class WeightWork(NamedTuple):
    """What is left for W at a joint."""

    joint: Joint
    arrived: list[torch.Tensor | None]
    """The gradient at each of its edges."""
    versions: list[int | None]
    """How often each had been changed in place when it arrived."""


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
        roots, seeds = _given(self._roots, gradients)
        self._roots = ()
        if roots:
            with outside_autocast():
                torch.autograd.backward(roots, seeds)
        self._result = tuple(_gradient(tensor, tensor.grad) for tensor in self._inputs)
        self._inputs = ()

    def backward_input(self, gradients: Value) -> None:
        """Run B: give the gradients of the inputs, and release what only B needed. The argument is as in `backward`."""
        self._run_again()
        saved = self._saved
        roots, seeds = _given(self._roots, gradients)
        self._roots = ()
        wanting = [number for number, tensor in enumerate(self._inputs) if tensor.requires_grad]
        given: dict[int, torch.Tensor | None] = {}
        if roots and saved is not None:
            from schedc.runtime.stage.splitting.frontier import find_cut

            sources = [get_gradient_edge(self._inputs[number]) for number in wanting]
            cut = find_cut(roots, sources)
            if cut.functions:
                from schedc.runtime.stage.splitting.kept import give_own_weights

                give_own_weights(cut.functions)
            found = self._cut_backward(cut, roots, seeds, sources, saved)
            given = dict(zip(wanting, found, strict=True))
            saved.release()
        self._result = tuple(_gradient(tensor, given.get(number)) for number, tensor in enumerate(self._inputs))
        for number in wanting:  # the graph holds it to the end; what W reads of it is kept apart, or is the stage's alias
            self._inputs[number].data = self._inputs[number].new_empty(0)
        self._inputs = ()

    def backward_weight(self, part: int = 0, shares: Sequence[int] = (1,)) -> None:
        """Run W, or one part of it: add the gradients of the weights.

        Args:
            part: which part.
            shares: the relative time of each part; the joints are dealt to the parts by the size of their weights.
        """
        works = self._weight_work
        if len(shares) > 1:
            works = [works[at] for at in _dealt([one.joint.weights for one in works], shares)[part]]
        with outside_autocast(), GraphExecGroup():  # a checkpointed region runs forward once, not once for each joint in it
            for joint, arrived, versions in works:
                if [None if one is None else one._version for one in arrived] != versions:
                    raise RuntimeError(
                        "a gradient that B has kept for W has been changed in place before W: a function of the user's own gives"
                        " memory that it uses again; let it give new memory, or compile with split_backward = false"
                    )
                edges, values = _given(joint.edges, arrived)
                if edges:
                    # With `inputs`, a node that runs again computes the gradients of these weights alone.
                    torch.autograd.backward(edges, values, inputs=joint.leaves if joint.runs_twice else None)
        if part == len(shares) - 1:
            self._weight_work.clear()

    def _cut_backward(
        self,
        cut: Cut,
        roots: Sequence[GradientEdge],
        seeds: Sequence[torch.Tensor],
        sources: Sequence[GradientEdge],
        saved: SavedTensors,
    ) -> list[torch.Tensor | None]:
        """B itself: leave to W what is W's, and give the gradients of the sources."""
        from schedc.runtime.stage.splitting.kept import GradientArrivals, place_of, without_hooks

        asked = [edge for joint in cut.joints if joint.runs_twice or joint.ends for edge in joint.edges]
        wanted = [*asked, *cut.shared, *sources]
        if not wanted:
            return []
        arrivals = GradientArrivals(cut.before, roots, seeds)
        twice = [joint.node for joint in cut.joints if joint.runs_twice]
        handles = [*arrivals.listen(), *(handle for node in twice for handle in (arrivals.watch(node), *saved.keep_for(node)))]
        try:
            with outside_autocast(), without_hooks(cut.shared):
                found: list[torch.Tensor | None] = [
                    *torch.autograd.grad(roots, wanted, seeds, retain_graph=bool(twice), allow_unused=True)
                ]
        finally:
            for handle in handles:
                handle.remove()
        arrived = dict(zip(map(place_of, asked), found, strict=False)) | arrivals.found
        for joint in cut.joints:
            gradients = [arrived[place_of(edge)] for edge in joint.edges]
            versions = [None if gradient is None else arrivals.version(gradient) for gradient in gradients]
            self._weight_work.append(WeightWork(joint, gradients, versions))
        edges, values = _given(cut.shared, found[len(asked) : len(asked) + len(cut.shared)])
        if edges:
            torch.autograd.backward(edges, values)
        return found[len(found) - len(sources) :]

    def _forward(self, work: Callable[..., object]) -> tuple[torch.Tensor, ...]:
        """F with a graph; the outputs."""
        if self._split:
            from schedc.runtime.stage.splitting.kept import SavedTensors

            self._saved = SavedTensors()
        with torch.enable_grad(), nullcontext() if self._saved is None else self._saved.recording():
            outputs = tensors_of(work(*self._aliases()))
        self._roots = tuple(get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in outputs)
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


def _gradient(tensor: torch.Tensor, found: torch.Tensor | None) -> torch.Tensor | None:
    """What goes back for an input."""
    return found if found is not None or not tensor.requires_grad else torch.zeros_like(tensor)


def _given(
    edges: Sequence[GradientEdge | None], gradients: Sequence[torch.Tensor | None]
) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    """Those of the edges at which a gradient has arrived, and these gradients."""
    roots, values = [], []
    for edge, gradient in zip(edges, gradients, strict=bool(gradients)):
        if edge is not None and gradient is not None:
            roots.append(edge)
            values.append(gradient)
    return roots, values


def _dealt(weights: Sequence[int], shares: Sequence[int]) -> list[list[int]]:
    """The joints of each part, in order: a joint goes to the part in whose share the middle of its weights lies.

    Args:
        weights: of each joint, how many elements its weights have.
        shares: the relative time of each part.
    """
    ends = list(accumulate(shares))
    total = sum(weights)
    parts: list[list[int]] = [[] for _ in shares]
    before = 0
    for joint, own in enumerate(weights):
        middle = (2 * before + own) * ends[-1]
        parts[min(bisect_left([2 * total * end for end in ends], middle), len(ends) - 1)].append(joint)
        before += own
    return parts


_NOTHING = nullcontext()


@cache
def _device_types() -> tuple[str, ...]:
    """The kinds of devices on which a stage may be."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _active() -> list[str]:
    return [kind for kind in _device_types() if torch.is_autocast_enabled(kind)]


def outside_autocast() -> AbstractContextManager[object]:
    """A context without autocast."""
    active = _active()
    if not active:
        return _NOTHING
    contexts = ExitStack()
    for kind in active:
        contexts.enter_context(torch.autocast(kind, enabled=False))
    return contexts


def forget_cast_weights() -> None:
    """Before a step: let autocast cast the weights anew, for an optimizer may have changed them inside the same context."""
    if _active():
        torch.clear_autocast_cache()

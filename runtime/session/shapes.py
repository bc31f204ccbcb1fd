"""The shapes of a call's microbatches: each rank with inputs says what its own look like, and all ranks number them alike.

Each rank with inputs has a number of its own for what a microbatch looks like: the types and shapes of its tensors. The numbers
that all of them say of a microbatch are one *shape*, and what crosses the boundaries depends on the shape alone.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import torch

from schedc.runtime.stage.batches import samples_of, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.common.boundary import BoundaryMeta
    from schedc.runtime.stage.batches import Batches, Microbatches

STEADY = 50
"""After this many steps of the same shapes ranks post receives for the next before they know its own."""
MOST_SHAPES = 4096
"""Of more, all are forgotten, and headers go again."""


class ShapesOfCalls:
    """One rank's view."""

    def __init__(self, rank: int, *, varying: bool) -> None:
        """Take the rank, and whether tensors between stages may differ where microbatches have one shape."""
        self._rank, self._varying = rank, varying
        self._numbers: dict[object, int] = {}
        """Of what this rank's inputs have looked like, the number that it says to others."""
        self._number = count()
        self._known: dict[tuple[int, ...], int] = {}
        """Of the numbers that ranks have said of a microbatch, its shape; the same on all ranks."""
        self.use(0, 1)

    def use(self, microbatches: int, parts: int) -> None:
        """Later calls are for a plan of `microbatches`, each slice counted as one; one microbatch has `parts` slices."""
        self._count, self._parts = microbatches, parts
        self._looked: tuple[tuple[torch.dtype, torch.Size] | None, list[int]] = None, []
        """What the last batch looked like, where it was one tensor, and the word of it."""
        self._said: list[list[int]] = []
        """What ranks with inputs have said of the last step."""
        self._shapes: Sequence[int] = ()
        self._alike = STEADY
        """In how many steps, one after the other, shapes have been the same."""

    @property
    def are_steady(self) -> bool:
        """Whether they have been the same for long."""
        return self._alike >= STEADY and not self._varying

    def are_as_before(self, words: list[list[int]]) -> bool:
        """Whether these are the words of the last step."""
        return words == self._said

    def word(self, inputs: Batches | None, own: Microbatches, *, plain: bool) -> list[int]:
        """What this rank says of its inputs: a number for what each microbatch looks like, and how many samples it has.

        `own` are the microbatches, and `plain` is whether no keyword arguments are given, so that the inputs say it all.
        """
        look = (inputs.dtype, inputs.shape) if isinstance(inputs, torch.Tensor) and plain else None
        if look is not None and look == self._looked[0]:
            return self._looked[1]
        if len(self._numbers) > MOST_SHAPES:
            self._numbers.clear()
        what = f"rank {self._rank}: a microbatch of inputs"
        numbers = []
        parts, named = [one for one in (own.inputs, *own.inputs_of.values()) if one], own.kwargs.values()
        for at in range(self._count):
            found = tuple([shape_of(one[at], what) for one in parts])
            if named:
                beside = [value for each in named for value in each[at].values() if isinstance(value, torch.Tensor)]
                found += tuple((value.dtype, value.shape) for value in beside)
            number = self._numbers.get(found)
            if number is None:
                number = self._numbers[found] = next(self._number)
            numbers.append(number)
        samples = samples_of(inputs, self._count // self._parts)
        self._looked = look, [*numbers, *(each for each in samples for _ in range(self._parts))]
        return self._looked[1]

    def of(self, words: list[list[int]], boundaries: BoundaryMeta, *, steps: bool, first: bool) -> Sequence[int]:
        """The shapes of a call's microbatches.

        Args:
            words: of the ranks with inputs: whether the call begins, and their `word`.
            boundaries: forget what they know, where there are too many shapes, or tensors may differ within one.
            steps: whether it is a step.
            first: whether no step of the plan has run.
        """
        if self._varying:
            boundaries.clear()
            return [*range(self._count)]
        if steps and words == self._said:
            self._alike += 1
            return self._shapes
        if len(self._known) > MOST_SHAPES:
            self._known.clear()
            boundaries.clear()
        columns = zip(*(one[1 : 1 + self._count] for one in words), strict=True)
        shapes = [self._known.setdefault(numbers, len(self._known)) for numbers in columns]
        if steps:
            self._alike = self._alike if first else 0
            self._said, self._shapes = words, shapes
        return shapes

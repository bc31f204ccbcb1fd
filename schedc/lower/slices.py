"""Microbatches cut along their sequence: a Workload of whole ones and the lengths of their slices, made into one of slices.

A slice of x tokens behind L others attends to L + x tokens. So of a block of d ns whose sequence has S tokens it takes
d × (c + (1 − c − q) × x ÷ S + q × ((L + x)² − L²) ÷ S²), where q is the quadratic share of the block (`Layer.quadratic`; of W it is
0) and c what each slice takes anyway (`Layer.fixed`). That is t(L, x) = c + bx + a(2Lx + x²), and d where there is one slice.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import lcm
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import Layer, Workload

_Values: TypeAlias = tuple[int, ...]


def in_slices(workload: Workload, lengths: tuple[int, ...]) -> Workload:
    """The workload with each microbatch in slices of these lengths. Durations that are given for each slice stay as they are.

    Args:
        workload: of whole microbatches. Without slices, its durations are one for all of them.
        lengths: in tokens; none: microbatches stay whole.
    """
    if not lengths:
        return workload
    cut = _Cut(lengths, workload.microbatches)
    made: dict[object, Layer] = {}  # by what its durations depend on
    layers = []
    for layer in workload.layers:
        times = layer.forward_ns, layer.backward_input_ns, layer.backward_weight_ns, layer.backward_ns, layer.forward_again_ns
        key = times, layer.fixed, layer.quadratic
        known = made.get(key) or made.setdefault(key, cut.of(layer))
        layers.append(
            replace(
                layer,
                forward_ns=known.forward_ns,
                backward_input_ns=known.backward_input_ns,
                backward_weight_ns=known.backward_weight_ns,
                backward_ns=known.backward_ns,
                forward_again_ns=known.forward_again_ns,
            )
        )
    return replace(workload, layers=tuple(layers), microbatches=workload.microbatches * len(lengths), slices=lengths)


class _Cut:
    """Slices of these lengths, of each of a number of microbatches. Shares of a layer's durations are whole numbers of a unit."""

    def __init__(self, lengths: Sequence[int], microbatches: int) -> None:
        self._microbatches, whole = microbatches, sum(lengths)
        self._whole2 = whole * whole
        self._linear = [length * whole for length in lengths]
        self._square = [end * end - (end - length) ** 2 for length, end in zip(lengths, accumulate(lengths), strict=True)]

    def of(self, layer: Layer) -> Layer:
        """The layer with the durations of its slices, to the nearest nanosecond, ties to even."""
        unit = lcm(layer.fixed.denominator, *(share.denominator for share in layer.quadratic))
        forward, backward, weight = (self._shares(layer.fixed, share, unit) for share in (*layer.quadratic, Fraction(0)))
        unit *= self._whole2

        def each_ns(values: _Values, shares: Sequence[int], of: int = unit) -> _Values:
            if len(values) == 1:
                values = tuple(_nearest(values[0] * share, of) for share in shares)
            return alike_or_each(values if len(values) > len(shares) else values * self._microbatches)

        input_ns, weight_ns = each_ns(layer.backward_input_ns, backward), each_ns(layer.backward_weight_ns, weight)
        whole_ns = layer.backward_input_ns[0] + layer.backward_weight_ns[0]
        if len(layer.backward_ns) > 1 or layer.backward_ns[0] != whole_ns:  # fused, as the two together, in their proportion
            both = zip(backward, weight, strict=True)
            together = [a * layer.backward_input_ns[0] + b * layer.backward_weight_ns[0] for a, b in both]
            fused_ns = each_ns(layer.backward_ns, together, unit * whole_ns) if whole_ns else each_ns(layer.backward_ns, backward)
        else:
            halves = [each * max(len(input_ns), len(weight_ns)) if len(each) == 1 else each for each in (input_ns, weight_ns)]
            fused_ns = tuple(map(sum, zip(*halves, strict=True)))
        again = layer.forward_again_ns
        return replace(
            layer,
            forward_ns=each_ns(layer.forward_ns, forward),
            backward_input_ns=input_ns,
            backward_weight_ns=weight_ns,
            backward_ns=fused_ns,
            forward_again_ns=None if again is None else each_ns(again, forward),
        )

    def _shares(self, fixed: Fraction, quadratic: Fraction, unit: int) -> list[int]:
        """What each slice takes of a whole microbatch's duration, which is that many units times the square of its tokens."""
        always, linear, square = (int(share * unit) for share in (fixed, 1 - fixed - quadratic, quadratic))
        always *= self._whole2
        return [always + linear * a + square * b for a, b in zip(self._linear, self._square, strict=True)]


def _nearest(value: int, of: int) -> int:
    """Value ÷ of as a whole number, ties to even."""
    down, rest = divmod(value, of)
    return down + (2 * rest > of or (2 * rest == of and down % 2))


def alike_or_each(durations_ns: _Values) -> _Values:
    """One duration for all microbatches where they take the same time, else one for each."""
    return durations_ns if len(set(durations_ns)) > 1 else durations_ns[:1]

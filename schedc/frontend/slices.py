"""[slices] read: microbatches cut along their sequence, and what each slice takes of a whole microbatch's durations.

A slice of x tokens behind L others attends to L + x tokens. So of a block of d ns whose sequence has S tokens it takes
d × (c + (1 − c − q) × x ÷ S + q × ((L + x)² − L²) ÷ S²), where q is the quadratic share of the block and c what each slice takes
anyway. That is t(L, x) = c + bx + a(2Lx + x²), and d where there is one slice.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

from schedc.frontend.profile import alike_or_each
from schedc.lower.problem import together_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.job_file import JobFile
    from schedc.io.location import Location
    from schedc.ir import Layer

Shares = tuple[float, float]
"""Of forward and backward_input, what is quadratic."""


def layers_in_slices(
    job: JobFile, layers: Sequence[Layer], quadratic: Sequence[Shares | None], root: Location
) -> tuple[Layer, ...]:
    """The layers with a duration for each slice.

    Args:
        job: without the section, the layers stay as they are. Durations that it gives for each slice stay, too.
        layers: with the durations of whole microbatches.
        quadratic: per layer, its shares; None: those of the section.
        root: the job's place.

    Raises:
        InvalidInput: shares of a layer that add up to more than all of it.
    """
    section = job.slices
    if section is None:
        return tuple(layers)
    cut, fixed, own = section.cut, Fraction(repr(section.fixed)), section.quadratic or 0.0
    whole = sum(cut)
    linear = [Fraction(length, whole) for length in cut]
    square = [Fraction(end * end - (end - length) ** 2, whole * whole) for length, end in zip(cut, accumulate(cut), strict=True)]

    def scales(share: float) -> list[Fraction]:
        q = Fraction(repr(share))
        if q + fixed > 1:
            raise (root / "slices" / "fixed").refuse(
                f"{section.fixed} beside a layer of whose durations {share} is quadratic", "shares that add up to at most 1"
            )
        return [fixed + (1 - fixed - q) * a + q * b for a, b in zip(linear, square, strict=True)]

    def each_ns(values: tuple[int, ...], by: Sequence[Fraction]) -> tuple[int, ...]:
        """Of each slice of all microbatches, to the nearest nanosecond, ties to even."""
        of_slices = values if len(values) > 1 else tuple(round(values[0] * scale) for scale in by)
        return alike_or_each(of_slices if len(of_slices) > len(cut) else of_slices * job.pipeline.microbatches)

    made, of_weight = [], scales(0.0)
    for layer, shares in zip(layers, quadratic, strict=True):
        of_forward, of_backward = map(scales, (own, own) if shares is None else shares)
        input_ns, weight_ns = each_ns(layer.backward_input_ns, of_backward), each_ns(layer.backward_weight_ns, of_weight)
        whole_ns = layer.backward_input_ns[0] + layer.backward_weight_ns[0]
        if len(layer.backward_ns) > 1 or layer.backward_ns[0] != whole_ns:  # fused, as the two together, in their proportion
            both = zip(of_backward, of_weight, strict=True)
            together = [a * layer.backward_input_ns[0] + b * layer.backward_weight_ns[0] for a, b in both]
            fused_ns = each_ns(layer.backward_ns, [each / whole_ns for each in together] if whole_ns else of_backward)
        else:
            fused_ns = together_ns([input_ns, weight_ns])
        again = layer.forward_again_ns
        made.append(
            replace(
                layer,
                forward_ns=each_ns(layer.forward_ns, of_forward),
                backward_input_ns=input_ns,
                backward_weight_ns=weight_ns,
                backward_ns=fused_ns,
                forward_again_ns=None if again is None else each_ns(again, of_forward),
            )
        )
    return tuple(made)

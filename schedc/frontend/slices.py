"""[slices] read: microbatches cut along their sequence. The law by which slices share durations is in `schedc.lower.slices`.

Takes the section and the shares that a profile says; gives the layers with what the law needs, and which cuts are open.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from schedc.ir import BLOCKS, OpenSlices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.job_file import JobFile
    from schedc.io.location import Location
    from schedc.ir import Layer

Shares = tuple[float, float]
"""Of forward and backward_input, what is quadratic."""


def layers_for_slices(
    job: JobFile, layers: Sequence[Layer], quadratic: Sequence[Shares | None], root: Location
) -> tuple[Layer, ...]:
    """The layers, with what slices of them take.

    Without the section, they stay as they are. `quadratic` has the shares of each layer; None: those of the section.

    Raises:
        InvalidInput: shares of a layer that add up to more than all of it; durations of each microbatch where cuts are open.
    """
    section = job.slices
    if section is None:
        return tuple(layers)
    if section.is_open and any(len(layer.durations_ns(kind)) > 1 for layer in layers for kind in BLOCKS):
        raise (root / "slices").refuse('"auto" beside durations for each slice in [profile]', "one of the two")
    fixed, own = Fraction(repr(section.fixed)), section.quadratic or 0.0
    made = []
    for layer, shares in zip(layers, quadratic, strict=True):
        forward, backward = (Fraction(repr(share)) for share in ((own, own) if shares is None else shares))
        if max(forward, backward) + fixed > 1:
            raise (root / "slices" / "fixed").refuse(
                f"{section.fixed} beside a layer of whose durations {float(max(forward, backward))} is quadratic",
                "shares that add up to at most 1",
            )
        made.append(replace(layer, fixed=fixed, quadratic=(forward, backward)))
    return tuple(made)


def open_slices(job: JobFile) -> OpenSlices | None:
    """Which cuts are open; None: none."""
    section = job.slices
    if section is None or not section.is_open:
        return None
    least, most = section.counts
    return OpenSlices(tokens=section.tokens or 0, granularity=section.multiple, least=least, most=most)

"""The known schedules, by name. Each takes a Problem and gives a Schedule, or raises `Unsupported` and says what it needs.

They look at the placement and the number of microbatches, never at durations, links or (but for `interleaved` where p does not
divide m) memory limits: what such a schedule takes and holds on a job, the simulator and the verifier say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.solvers.templates.chimera import chimera
from schedc.solvers.templates.dualpipe_v import dualpipe_v
from schedc.solvers.templates.gpipe import gpipe
from schedc.solvers.templates.hanayo import hanayo
from schedc.solvers.templates.one_f_one_b import interleaved, one_f_one_b
from schedc.solvers.templates.zb_h import zb_h1, zb_h2
from schedc.solvers.templates.zb_v import zb_v

if TYPE_CHECKING:
    from schedc.solvers.common.base import Construct


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A known schedule and what a person wants to know of it."""

    name: str
    """What `--method` calls it."""
    summary: str
    """Its order and the most that a rank holds, for p ranks, m microbatches and v chunks."""
    placements: str
    """The placements that it exists for."""
    construct: Construct
    source: str
    """Where it was published."""


TEMPLATES: dict[str, Template] = {
    template.name: template
    for template in (
        Template(
            name="gpipe",
            summary="all forwards, then all backwards; holds m activations",
            placements="any",
            construct=gpipe,
            source="Huang et al., 2019",
        ),
        Template(
            name="1f1b",
            summary="one forward, one backward; holds at most p activations; on a loop it is interleaved",
            placements="unidirectional or loop",
            construct=one_f_one_b,
            source="Narayanan et al., 2021",
        ),
        Template(
            name="interleaved",
            summary="1F1B over the chunks of a rank; holds at most (v - 1) p + 2 p - 1 activations of chunks",
            placements="loop",
            construct=interleaved,
            source="Narayanan et al., 2021, section 2.2",
        ),
        Template(
            name="zb-h1",
            summary="1F1B's order with W put off as far as p activations allow",
            placements="unidirectional",
            construct=zb_h1,
            source="Qi et al., 2023, section 2.3",
        ),
        Template(
            name="zb-h2",
            summary="no bubble but the last W's, for equal costs; holds at most 2 p - 1 activations",
            placements="unidirectional",
            construct=zb_h2,
            source="Qi et al., 2023, section 2.3",
        ),
        Template(
            name="zb-v",
            summary="no bubble at 1F1B's memory, for equal costs; holds at most 2 p activations of chunks",
            placements="wave with 2 chunks",
            construct=zb_v,
            source="Qi et al., 2023, section 6",
        ),
        Template(
            name="hanayo",
            summary="1F1B along v / 2 waves; holds at most p activations of all of a rank's chunks",
            placements="wave",
            construct=hanayo,
            source="Liu et al., 2023",
        ),
        Template(
            name="chimera",
            summary="two pipelines in opposite directions; holds at most p activations (p even)",
            placements="bidirectional",
            construct=chimera,
            source="Li and Hoefler, 2021, section 3.1",
        ),
        Template(
            name="dualpipe-v",
            summary="DualPipe folded onto half the ranks; holds at most 2 p + 1 activations of chunks",
            placements="wave with 2 chunks",
            construct=dualpipe_v,
            source="DeepSeek-AI, DualPipe, 2025",
        ),
    )
}
"""Every known schedule, from the simplest on."""

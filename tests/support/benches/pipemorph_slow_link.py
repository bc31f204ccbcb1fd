"""PipeMorph's runs under a slow link: its pipeline, and what its authors measured on H800s.

GPT-2 14B on 8 ranks (github.com/wutianyuan1/PipeMorph, commit 7ff0dc6); a kernel that sleeps before each send delays every message
between ranks 6 and 7. Measured times are medians of iterations 10 to 15 of its logs
(`experiments/increasing-delay/14B/*/6_7/*/log.txt`), without delay of iterations 4 to 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.ir.problem import Problem, Stage
from schedc.lower.placement import place
from schedc.study.bench.pipelines import FREE, LinkTimes, both_ways, links_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MS = 1_000_000
MICROBATCHES = 24
SLOW_LINK, DELAYS_MS = 6, (10, 20, 30, 40, 50, 60)
MEASURED_MS = {
    "1F1B": (873, 1081, 1331, 1580, 1832, 2108, 2333),
    "ZB": (756, 998, 1349, 1814, 2297, 2820, 3255),
    "ZB with delegates": (756, 888, 1033, 1189, 1318, 1485, 1654),
    "PipeMorph": (756, 848, 854, 877, 853, 877, 895),
}
"""Without delay, then with each of the delays."""
ROOM = 16
"""Microbatches: `ZERO_BUBBLE_MEM_LIMIT`, twice the ranks."""


def stages_of(layers: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """The stages of its planner's profile; a microbatch's activations are two bytes, one after B."""
    return [
        Stage(
            rank=rank,
            forward_ns=(layer["forward_ms"] * MS,),
            backward_input_ns=(layer["backward_input_ms"] * MS,),
            backward_weight_ns=(layer["backward_weight_ms"] * MS,),
            backward_ns=((layer["backward_input_ms"] + layer["backward_weight_ms"]) * MS,),
            activation_bytes=2,
            activation_after_input_bytes=1,
        )
        for rank, layer in enumerate(layers)
    ]


def problem_of(stages: Sequence[Stage], delay: LinkTimes) -> Problem:
    """The pipeline without memory limits, its slow link with this delay both ways, all others free."""
    placed = place("unidirectional", len(stages))
    return Problem(
        name=f"{delay} on the slow link",
        ranks=len(stages),
        microbatches=MICROBATCHES,
        stages=tuple(stages),
        paths=placed.paths,
        path_of=placed.path_of(MICROBATCHES),
        links=links_of(placed, dict.fromkeys(placed.crossed(), FREE) | both_ways((SLOW_LINK,), delay)),
        memory_limit_bytes=(None,) * len(stages),
        placement="unidirectional",
    )

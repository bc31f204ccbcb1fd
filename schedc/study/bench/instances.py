"""The named sets of instances: problems that are the same on every machine, with what was published for them.

- `m70`: CrossPipe's tables 5 and 6, 8 ranks; `m70-wave`: the same cells with two chunks per rank, placed as a wave.
- `m70-loop`: M70 with two chunks per rank, placed as a loop: one slow link in the middle, or two sites; by memory limit.
- `pipemorph`: equal costs and one slow link. `zero-bubble`: Zero Bubble's profiled models. Both by placement and memory limit.
- `zero-bubble-span`: the same as `zero-bubble`, with its own objective, the longest stage span.
- `random`: unequal stages, links and limits, by seed, half in measured numbers. `large`: up to 64 ranks, 1,024 microbatches.

BW is B plus W in all of them, as their papers have it; `instances` makes the same sets with another BW.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.ir import Objective, Problem
from schedc.spelling import nearest
from schedc.study.bench.pipelines import RANDOM_SEEDS, LinkTimes, both_ways, pipeline, random_problem
from schedc.study.bench.published import (
    CROSSPIPE_CASE_1_METHODS,
    CROSSPIPE_CASE_3_METHODS,
    CROSSPIPE_S_PER_MICROBATCH,
    M70_LOOP_PEERS_MS,
    PEER_COLUMNS,
    PEERS_MS,
    ZERO_BUBBLE_METHODS,
    ZERO_BUBBLE_PROFILES,
    ZERO_BUBBLE_V_RATES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


MS = 1_000_000
M70_NS = (38 * MS, 46_500_000, 20_500_000)
M70_SLOW = {2: (3,), 4: (1, 3, 5)}
"""The ranks before a slow link, by sites."""
WAVE_METHODS = ("ZBV", "Wave")
"""CrossPipe's columns with the wave placement; the others are unidirectional."""
PLACEMENT_NAMES = {"linear": "unidirectional", "loop": "loop", "V": "wave"}
PIPEMORPH_NS = (10 * MS, 10 * MS, 10 * MS)
PIPEMORPH = {
    "pm-p4-n12-c0": (4, 12, 0, 0),
    "pm-p4-n12-first10": (4, 12, 0, 10),
    "pm-p4-n12-first20": (4, 12, 0, 20),
    "pm-p4-n12-last10": (4, 12, 2, 10),
    "pm-p4-n12-last20": (4, 12, 2, 20),
    "pm-p8-n32-c0": (8, 32, 6, 0),
    "pm-p8-n32-last30": (8, 32, 6, 30),
    "pm-p8-n32-last60": (8, 32, 6, 60),
}
"""Ranks, microbatches, the rank before the slow link, and its latency in ms."""
LARGE = (
    (16, 32, 2.0, 0.25),
    (16, 32, 0.25, 2.0),
    (16, 32, 2.0, 2.0),
    (32, 64, 0.0, 0.0),
    (64, 128, 2.0, 2.0),
    (8, 1024, 2.0, 2.0),
)
"""Ranks, microbatches, latency and occupancy of the middle link in units of F."""


class PublishedUnit(StrEnum):
    """What published values count."""

    S_PER_MICROBATCH = "s/microbatch"
    MS = "ms"
    BUBBLE_RATE = "bubble rate"
    """(cost − work of one rank) / cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One problem of a set, with what others published for it."""

    problem: Problem
    published: Mapping[str, float | int]
    """By the name of who reached it; for another placement or more memory too, where one table holds both."""
    unit: PublishedUnit
    comparable: tuple[str, ...]
    """Those of `published` that had this placement and no more memory."""

    @property
    def name(self) -> str:
        """The problem's."""
        return self.problem.name

    def published_ns(self, name: str) -> int:
        """A published value as a value of the problem's objective, in nanoseconds."""
        value = self.published[name]
        if self.unit is PublishedUnit.S_PER_MICROBATCH:
            return round(value * self.problem.microbatches * 1_000_000_000)
        if self.unit is PublishedUnit.MS:
            return round(value * MS)
        of_one = sum(stage.forward_ns[0] + stage.backward_ns[0] for stage in self.problem.stages if stage.rank == 0)
        return round(self.problem.microbatches * of_one / (1 - value))

    def published_best(self) -> tuple[str, int] | None:
        """The best of the comparable values: who reached it, and its nanoseconds."""
        return min(((name, self.published_ns(name)) for name in self.comparable), key=lambda pair: pair[1], default=None)


def instances(set_name: str, fused_backward: float | None = None) -> tuple[Instance, ...]:
    """The instances of a set, in its order.

    Args:
        set_name: one of `SETS`.
        fused_backward: BW as a multiple of B plus W, as in 0.9; None: as the set has it, B plus W. Another BW is another instance,
            for which nothing is published.

    Raises:
        InvalidInput: there is no such set; names the nearest. Or the multiple is no number above 0.
    """
    if set_name not in SETS:
        raise InvalidInput(f"set {set_name!r} is unknown{nearest(set_name, SETS)}; expected {', '.join(SETS)}")
    if fused_backward is None:
        return tuple(SETS[set_name]())
    if not 0 < fused_backward < inf:
        raise InvalidInput(f"--fused-backward: found {fused_backward:g}, expected a number above 0, as in 0.9: BW is 0.9 × (B + W)")
    return tuple(_unpublished(_with_fused_backward(each.problem, fused_backward)) for each in SETS[set_name]())


def _m70(placement: str) -> Iterator[Instance]:
    for (sites, latency, occupancy), values_of_case in CROSSPIPE_S_PER_MICROBATCH.items():
        for case, methods, values in zip((1, 3), (CROSSPIPE_CASE_1_METHODS, CROSSPIPE_CASE_3_METHODS), values_of_case, strict=True):
            problem = pipeline(
                f"{'m70' if placement == 'unidirectional' else 'm70-wave'}-{sites}dc-{latency:g}-{occupancy:g}-case{case}",
                8,
                16 if case == 1 else 32,
                M70_NS,
                in_flight=8 if case == 1 else 16,
                placement=placement,
                slow=both_ways(M70_SLOW[sites], _in_forwards(latency, occupancy)),
            )
            yield Instance(
                problem=problem,
                published=dict(zip(methods, values, strict=True)),
                unit=PublishedUnit.S_PER_MICROBATCH,
                comparable=tuple(method for method in methods if (method in WAVE_METHODS) == (placement == "wave")),
            )


def _m70_loop() -> Iterator[Instance]:
    """With two sites the way back from the last rank to the first is slow too, and shares its trunk with the middle link."""
    for (slow, latency, occupancy), values in M70_LOOP_PEERS_MS.items():
        cost = _in_forwards(latency, occupancy)
        costs = both_ways((3,), cost)
        if slow == "2dc":
            costs = dict.fromkeys(((3, 4), (0, 7)), cost._replace(trunk="0>1"))
            costs |= dict.fromkeys(((4, 3), (7, 0)), cost._replace(trunk="1>0"))
        for times, value in zip((1, 2), values, strict=True):
            name = f"m70-loop-{slow}-{latency:g}-{occupancy:g}-{_memory_name(times)}"
            yield _beside_peers(pipeline(name, 8, 16, M70_NS, in_flight=8 * times, placement="loop", slow=costs), value)


def _pipemorph() -> Iterator[Instance]:
    for base, (ranks, microbatches, before, latency_ms) in PIPEMORPH.items():
        for (placement, times), value in zip(PEER_COLUMNS, PEERS_MS[base], strict=True):
            problem = pipeline(
                f"{base}-{placement}-{_memory_name(times)}",
                ranks,
                microbatches,
                PIPEMORPH_NS,
                in_flight=times * ranks,
                placement=PLACEMENT_NAMES[placement],
                slow=both_ways((before,), LinkTimes(latency_ms * MS, 0)),
            )
            yield _beside_peers(problem, value)


def _zero_bubble(objective: Objective) -> Iterator[Instance]:
    for profile in ZERO_BUBBLE_PROFILES:
        base = f"zb-{profile.model}-p{profile.ranks}-n{profile.microbatches}"
        v_rate = ZERO_BUBBLE_V_RATES.get((profile.model, profile.microbatches))
        rates = dict(zip(ZERO_BUBBLE_METHODS, profile.bubble_rates, strict=True)) | ({} if v_rate is None else {"ZB-V": v_rate})
        for (placement, times), value in zip(PEER_COLUMNS, PEERS_MS[base], strict=True):
            problem = pipeline(
                f"{base}-{placement}-{_memory_name(times)}{'-span' if objective is Objective.STAGE_SPAN else ''}",
                profile.ranks,
                profile.microbatches,
                (profile.forward_ns, profile.backward_input_ns, profile.backward_weight_ns),
                in_flight=times * profile.ranks,
                placement=PLACEMENT_NAMES[placement],
                otherwise=LinkTimes(profile.latency_ns, 0),
                objective=objective,
            )
            if objective is Objective.MAKESPAN:
                yield _beside_peers(problem, value)
                continue
            within_p = {"linear": ("1F1B", "ZB-H1", "ZB-1p"), "V": ("ZB-V",)}.get(placement, ())
            within_2p = ("ZB-H2", "ZB-2p") if placement == "linear" and times == 2 else ()
            yield Instance(
                problem=problem,
                published=rates,
                unit=PublishedUnit.BUBBLE_RATE,
                comparable=tuple(method for method in (*within_p, *within_2p) if method in rates),
            )


def _random() -> Iterator[Instance]:
    for seed in RANDOM_SEEDS:
        yield _unpublished(random_problem(f"random-{seed:02}", seed))


def _large() -> Iterator[Instance]:
    for ranks, microbatches, latency, occupancy in LARGE:
        name = f"large-{ranks}x{microbatches}-{latency:g}-{occupancy:g}"
        slow = both_ways((ranks // 2 - 1,), _in_forwards(latency, occupancy))
        yield _unpublished(pipeline(name, ranks, microbatches, M70_NS, in_flight=ranks, slow=slow))


def _in_forwards(latency: float, occupancy: float) -> LinkTimes:
    """A link's latency and occupancy, given in units of M70's F; exact for quarters."""
    return LinkTimes(int(latency * M70_NS[0]), int(occupancy * M70_NS[0]))


def _memory_name(times: int) -> str:
    return "p" if times == 1 else f"{times}p"


def _beside_peers(problem: Problem, value_ms: float) -> Instance:
    return Instance(problem=problem, published={"best peer": value_ms}, unit=PublishedUnit.MS, comparable=("best peer",))


def _with_fused_backward(problem: Problem, multiple: float) -> Problem:
    """The problem with a BW of its own at every stage, in its name too."""
    stages = tuple(
        replace(
            stage,
            backward_ns=tuple(
                round(multiple * (input_ns + weight_ns))
                for input_ns, weight_ns in zip(stage.backward_input_ns, stage.backward_weight_ns, strict=True)
            ),
        )
        for stage in problem.stages
    )
    return replace(problem, name=f"{problem.name}-bw{multiple:g}", stages=stages)


def _unpublished(problem: Problem) -> Instance:
    return Instance(problem=problem, published={}, unit=PublishedUnit.MS, comparable=())


SETS: dict[str, Callable[[], Iterable[Instance]]] = {
    "m70": partial(_m70, "unidirectional"),
    "m70-wave": partial(_m70, "wave"),
    "m70-loop": _m70_loop,
    "pipemorph": _pipemorph,
    "zero-bubble": partial(_zero_bubble, Objective.MAKESPAN),
    "zero-bubble-span": partial(_zero_bubble, Objective.STAGE_SPAN),
    "random": _random,
    "large": _large,
}
"""The sets by name."""

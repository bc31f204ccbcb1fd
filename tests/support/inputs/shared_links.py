"""Links as users have them where bandwidth is short: several share a trunk, and a message holds it longer than a block takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.problem import Problem

STYLES = ("one", "one", "into a rank", "out of a rank", "both ways", "sites", "sites both ways", "some")
"""What shares a trunk: all links; those into, or out of, each rank; the two of a pair of ranks; what crosses from one site to the
other, each way or both together; some links."""
KINDS = Kind.F, Kind.B, Kind.W, Kind.BW


def with_shared_links(problem: Problem, random: Random, *, sized: bool = False) -> Problem:
    """The problem with other links between the same ranks, in the same numbers as its blocks: trunks, and messages of any length.

    Half have no latency. Occupancies are up to half of the longest block, up to all of it, or up to three times as long; all alike,
    or each of its own. Most problems whose microbatches are alike begin with a long F and end with a long W, with short blocks
    between and messages up to half as long as these: who is first on a trunk then depends on which backwards are fused.

    Args:
        problem: any; its collectives get a trunk where there is one, or none.
        random: decides all.
        sized: half of the problems say what a message takes in bytes, so that a gradient takes more or less than an activation.
    """
    are_alike = all(len(values) == 1 for stage in problem.stages for values in map(stage.durations_ns, KINDS))
    has_long_ends = are_alike and random.random() < 0.6
    if has_long_ends:
        problem = _with_long_ends(problem, random)
    longest_ns = max(1, *(max(stage.durations_ns(kind)) for stage in problem.stages for kind in KINDS))
    style, cut = random.choice(STYLES), random.randint(1, max(1, problem.ranks - 1))
    if has_long_ends and random.random() < 0.5:
        style = "one"
    most_ns = max(1, round(longest_ns * random.choice([0.5, 0.6, 0.7] if has_long_ends else [0.5, 1, 3])))
    common = random.choice([None, random.randint(1, most_ns)])
    latency_ns = random.choice([0, longest_ns])
    in_bytes = sized and random.random() < 0.5
    links = []
    for link in problem.links:
        occupancy_ns = random.randint(0 if random.random() < 0.1 else 1, most_ns) if common is None else common
        changed = replace(link, latency_ns=random.randint(0, latency_ns), transfer_ns=occupancy_ns, bytes_per_second=None)
        changed = replace(changed, trunk=_trunk(style, link.source, link.destination, cut, random))
        if in_bytes:
            changed = replace(changed, transfer_ns=None, bytes_per_second=random.choice([10**9, 7 * 10**8]))
        links.append(changed)
    problem = replace(problem, links=tuple(links))
    if in_bytes:
        stages = [
            replace(stage, message_bytes=random.randint(0, most_ns), gradient_message_bytes=random.randint(0, most_ns))
            for stage in problem.stages
        ]
        problem = replace(problem, stages=tuple(stages))
    trunks = sorted({link.trunk for link in links if link.trunk is not None})
    parallel = problem.data_parallel
    if parallel is not None and not problem.is_sharded:  # a rank's own where weights are
        problem = replace(problem, data_parallel=replace(parallel, trunk=random.choice([None, *trunks])))
    return problem


def _with_long_ends(problem: Problem, random: Random) -> Problem:
    """The first stages of the paths with a long F, the last ones with a long W, all else short; split, most with room for all."""
    firsts, lasts = ({path[at] for path in problem.paths} for at in (0, -1))
    stages = []
    for at, stage in enumerate(problem.stages):
        f, b, w = (random.randint(1, 2) for _ in range(3))
        f += random.randint(7, 14) if at in firsts else 0
        w += random.randint(5, 11) if at in lasts else 0
        stages.append(replace(stage, forward_ns=(f,), backward_input_ns=(b,), backward_weight_ns=(w,), backward_ns=(b + w,)))
    limits = (None,) * problem.ranks if random.random() < 0.7 else problem.memory_limit_bytes
    return replace(problem, stages=tuple(stages), split_backward=True, memory_limit_bytes=limits)


def _trunk(style: str, source: int, destination: int, cut: int, random: Random) -> str | None:
    """The trunk of one link; None: it has none."""
    sites = (source >= cut, destination >= cut)
    return {
        "one": "trunk",
        "into a rank": f"into {destination}",
        "out of a rank": f"out of {source}",
        "both ways": f"{min(source, destination)}-{max(source, destination)}",
        "sites": None if sites[0] == sites[1] else f"site{sites[0]:d}>site{sites[1]:d}",
        "sites both ways": None if sites[0] == sites[1] else "between sites",
        "some": random.choice(["east", "west", None]),
    }[style]

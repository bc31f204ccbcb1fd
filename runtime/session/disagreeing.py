"""Why ranks cannot train together, in words: imported where they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["differing_plans", "unlike_ranks"]


def differing_plans(offers: Sequence[tuple[str | None, str]], ranks: int) -> str:
    """Who has refused the plan, or which two have different ones.

    Args:
        offers: of all ranks, why it has refused the plan, if it has, and the digest of the plan; not all the same.
        ranks: how many a pipeline has.
    """

    def named(at: int) -> str:
        return f"rank {at}" if len(offers) == ranks else f"rank {at % ranks} of pipeline {at // ranks}"

    for at, (refusal, _) in enumerate(offers):
        if refusal is not None:
            return f"{named(at)} has refused the plan: {refusal}"
    first = offers[0][1]
    at, other = next((at, digest) for at, (_, digest) in enumerate(offers) if digest != first)
    both = f"ranks 0 and {at}" if len(offers) == ranks else f"{named(0)} and {named(at)}"
    return f"{both} have different plans (digests {first[:12]}… and {other[:12]}…); give all ranks the same file"


def unlike_ranks(ways: Sequence[tuple[bool, int]]) -> str:
    """Which two ranks load differently; of each, whether it wraps its wires, and over how many pipelines it sums gradients."""
    at, other = next((at, way) for at, way in enumerate(ways) if way != ways[0])
    if other[0] != ways[0][0]:
        return f"ranks 0 and {at} load with and without wrap; give all ranks the same"
    return (
        f"rank 0 sums its gradients over {ways[0][1]} pipelines, rank {at} over {other[1]};"
        " give all ranks the same data_parallel_group or replicas"
    )

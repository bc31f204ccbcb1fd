"""What keeps one process's peers, the same rank of several pipelines, from training together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.session.offers import Report

__all__ = ["apart"]


def apart(reports: Sequence[Report], *, replicas: bool) -> str | None:
    """What keeps peers, by pipeline, from training together; None: nothing. Only replicas have the same weights."""
    group = "data_parallel_group" if replicas else "swap_group"
    first = reports[0]
    for pipeline, other in enumerate(reports):
        if other.offer.refusal is not None:
            return f"rank {other.rank} of pipeline {pipeline} has refused the plan: {other.offer.refusal}"
    for pipeline, other in enumerate(reports):
        if other.rank != first.rank:
            return (
                f"the {group} has rank {first.rank} of pipeline 0 and rank {other.rank} of pipeline {pipeline};"
                " give it the processes of the same rank"
            )
        if other.offer.digest != first.offer.digest:
            return f"pipelines 0 and {pipeline} have different plans; give all the same file"
        for stage, digest in first.weights.items() if replicas else ():
            if other.weights[stage] != digest:
                return (
                    f"pipelines 0 and {pipeline} have different weights of stage {stage};"
                    " build both from the same seed or checkpoint"
                )
    return None

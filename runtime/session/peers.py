"""What keeps pipelines from training together: a plan for another number of them, or peers that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.program import replicas_of
from schedc.runtime.replicas.collectives import ReplicaCollectives, check_weights
from schedc.runtime.replicas.shared_weights import ReplicaSums, weights_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.replicas.pipelines import Pipelines
    from schedc.runtime.session.offers import Report


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
        if other.options != first.options:
            from schedc.runtime.session.disagreeing import unlike_options

            return f"pipelines 0 and {pipeline} {unlike_options(first.options, other.options)}; give all the same"
        for stage, digest in first.weights.items() if replicas else ():
            if other.weights[stage] != digest:
                return (
                    f"pipelines 0 and {pipeline} have different weights of stage {stage};"
                    " build both from the same seed or checkpoint"
                )
    return None


def check_replicas(plan: Plan, stages: Mapping[int, nn.Module], replicas: int | None, *, own_hooks: bool) -> None:
    """Refuse a plan for another number of pipelines than the job has.

    Args:
        plan: the plan.
        stages: this rank's.
        replicas: how many the data_parallel_group has; None: none was given.
        own_hooks: whether the job sums gradients over replicas itself.

    Raises:
        SchedcError: says why.
    """
    parallel = plan.problem.data_parallel
    if replicas_of(plan.problem) and (own_hooks or replicas is not None):
        given = "replicas were" if own_hooks else "a data_parallel_group was"
        raise Unsupported(
            f"plan {plan.name!r} has stages that are replicas of each other, and {given} given;"
            " the runtime sums gradients inside a pipeline or between pipelines, not both"
        )
    if own_hooks:
        return
    if replicas is None:
        if parallel is not None:
            raise InvalidInput(
                f"plan {plan.name!r} has the collectives of {parallel.size} replicas; give load a data_parallel_group of as many"
                " processes, or compile the job without [data_parallel]"
            )
        return
    if parallel is not None and parallel.size != replicas:
        raise InvalidInput(
            f"plan {plan.name!r} is for {parallel.size} replicas, the data_parallel_group has {replicas} processes;"
            " start as many pipelines, or compile for as many"
        )
    check_weights(stages)


def weights_of_replicas(plan: Plan, stages: Mapping[int, nn.Module], *, across: bool) -> dict[int, str]:
    """A digest of the weights of each stage that has replicas in the pipeline, or `across` pipelines, where all have."""
    replicated = {stage for members in replicas_of(plan.problem) for stage in members}
    return {stage: weights_digest(module) for stage, module in stages.items() if across or stage in replicated}


def hooks_of(plan: Plan, stages: Mapping[int, nn.Module], groups: Groups, pipelines: Pipelines | None) -> ReplicaHooks:
    """What sums the gradients of this rank's stages over their replicas, in other pipelines or in this one."""
    if pipelines is not None:
        return ReplicaCollectives(plan, groups.rank, stages, pipelines)
    return ReplicaSums(plan.problem, stages, groups)

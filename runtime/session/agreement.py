"""How all ranks agree at load: each says what it was given, and all find the same reason why they cannot train together, if any.

Reasons are in words that name the first two ranks that differ, and what to give them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import CheckFailed, InvalidInput, SchedcError
from schedc.ir import Plan, Problem
from schedc.runtime.common.program import replicas_of
from schedc.runtime.session.acceptance import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.transports.choice import TransportRequest


def plan_digest(plan: Plan) -> str:
    """A digest of all that a plan says, by which ranks know whether they have the same."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()


class Offer(NamedTuple):
    """What a rank says about a plan that it was given, at load or to move to."""

    refusal: str | None
    """Why it does not take it; None: it does."""
    digest: str = ""
    """`plan_digest` of it; empty where it refuses."""


ACCEPTED = Offer(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a rank sends to the others before a pipe is opened."""

    rank: int
    offer: Offer = ACCEPTED
    weights: Mapping[int, str] = field(default_factory=dict)
    """A digest of the weights of each stage that has replicas."""
    request: TransportRequest | None = None
    wrapped: bool = False
    pipelines: int = 1
    """Over how many pipelines its gradients are summed."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What was given to `load` as options that are to be the same on all ranks."""
    layers: tuple[str, ...] = ()
    """What each layer of the whole model is in the list that it gave to `build_stages`; empty: its stages are made otherwise."""
    agrees: bool = True
    """Whether its step may run again, as far as its hooks between replicas go."""


def agree(
    plan: Path | str | Plan, report: Report, accept: Callable[[Plan, Report], Report], groups: Groups
) -> tuple[Plan, list[Report]]:
    """The plan, once every rank of every pipeline accepts it and all have the same, and what all ranks of this pipeline report.

    Args:
        plan: the plan file, or the plan.
        report: what this rank was given besides.
        accept: takes a sound plan that all ranks of the pipeline have; gives the report with what it finds, or refuses.
        groups: of this pipeline; beside them those to the same rank of other pipelines.

    Raises:
        SchedcError: why not, on all ranks.
    """
    checked: Plan | None = None
    refusal: SchedcError | None = None
    try:  # rank 0 verifies the plan for all: those that have the same need not do it again
        checked = read(plan, verify=groups.rank == 0)
        offer = Offer(None, plan_digest(checked))
    except SchedcError as error:
        refusal, offer = error, Offer(str(error))
    reason = disagreement(groups.exchange(offer), groups.size)
    if reason is not None and refusal is None:
        refusal = CheckFailed(reason)
    report = replace(report, offer=offer)
    if checked is not None and refusal is None:
        try:
            report = accept(checked, report)
        except SchedcError as error:
            refusal = error
    if refusal is not None:
        report = replace(report, offer=Offer(str(refusal)))
    for others in groups.beside:
        reason = _unlike_peers(others.exchange(report), others.name)
        if reason is not None and refusal is None:
            refusal = CheckFailed(reason)
            report = replace(report, offer=Offer(reason))
    reports = groups.exchange(report)
    if refusal is not None:
        raise refusal
    reason = disagreement([other.offer for other in reports], groups.size)
    if reason is not None:
        raise CheckFailed(reason)
    assert checked is not None
    reason = unlike_weights(checked.problem, {stage: one for other in reports for stage, one in other.weights.items()})
    if reason is not None:
        raise CheckFailed(reason)
    reason = _unlike_ranks(reports) or unlike_layers(checked.problem, [other.layers for other in reports])
    if reason is not None:
        raise InvalidInput(reason)
    return checked, reports


def disagreement(offers: Sequence[Offer], ranks: int) -> str | None:
    """Who refuses the plan, or which two ranks have different ones; None where all can run it.

    Args:
        offers: of all ranks; of several pipelines one after the other, where they are to agree.
        ranks: how many a pipeline has.
    """

    def named(at: int) -> str:
        return f"rank {at}" if len(offers) == ranks else f"rank {at % ranks} of pipeline {at // ranks}"

    for at, (refusal, _) in enumerate(offers):
        if refusal is not None:
            return f"{named(at)} has refused the plan: {refusal}"
    first = offers[0].digest
    for at, (_, other) in enumerate(offers):
        if other != first:
            both = f"ranks 0 and {at}" if len(offers) == ranks else f"{named(0)} and {named(at)}"
            return f"{both} have different plans (digests {first[:12]}… and {other[:12]}…); give all ranks the same file"
    return None


def _unlike_peers(reports: Sequence[Report], group: str) -> str | None:
    """What keeps peers, by pipeline, from training together; only those of a `data_parallel_group` have the same weights."""
    first = reports[0]
    for pipeline, other in enumerate(reports):
        if other.offer.refusal is not None:
            return f"rank {other.rank} of pipeline {pipeline} has refused the plan: {other.offer.refusal}"
    for pipeline, other in enumerate(reports):
        both = f"pipelines 0 and {pipeline}"
        if other.rank != first.rank:
            return (
                f"the {group} has rank {first.rank} of pipeline 0 and rank {other.rank} of pipeline {pipeline};"
                " give it the processes of the same rank"
            )
        if other.offer.digest != first.offer.digest:
            return f"{both} have different plans; give all the same file"
        if other.options != first.options:
            return f"{both} {_unlike_options(first, other)}; give all the same"
        for stage, digest in first.weights.items() if group == "data_parallel_group" else ():
            if other.weights[stage] != digest:
                return f"{both} have different weights of stage {stage}; build both from the same seed or checkpoint"
    return None


def _unlike_ranks(reports: Sequence[Report]) -> str | None:
    """Which two ranks of a pipeline load differently."""
    first = reports[0]
    for at, other in enumerate(reports):
        if other.wrapped != first.wrapped:
            return f"ranks 0 and {at} load with and without wrap; give all ranks the same"
        if other.options != first.options:
            return f"ranks 0 and {at} {_unlike_options(first, other)}; give all ranks the same"
        if other.pipelines != first.pipelines:
            return (
                f"rank 0 sums its gradients over {first.pipelines} pipelines, rank {at} over {other.pipelines};"
                " give all ranks the same data_parallel_group or replicas"
            )
    return None


def _unlike_options(one: Report, other: Report) -> str:
    """In which option two ranks differ."""
    name = next(name for name in one.options if one.options[name] != other.options[name])
    return f"load with {name}={one.options[name]} and {name}={other.options[name]}"


def unlike_weights(problem: Problem, digests: Mapping[int, str]) -> str | None:
    """Which two stages that are replicas of each other in a pipeline do not start equal; `digests` is of all that are."""
    for first, *others in replicas_of(problem):
        for other in others:
            if digests[first] != digests[other]:
                return (
                    f"stages {first} and {other} are replicas, but their weights differ;"
                    " build both from the same seed or checkpoint"
                )
    return None


def unlike_layers(problem: Problem, lists: Sequence[Sequence[str]]) -> str | None:
    """Which rank trains a layer that is elsewhere in the model of another rank; None: none is known to do so.

    A rank's list may have something else in place of layers that it does not train, and its own may be wrapped, with another class,
    or cut, with other shapes. So a list of exactly those layers that are trained, in another order, is a mistake. So is one with
    the shapes of another rank's list in another order, if both have layers with parameters at the same places, and some are alike:
    else each rank may have cut all of its own.

    Args:
        problem: says which rank trains which layers.
        lists: of each rank what each layer of its model is; empty: not known.
    """
    if len(set(map(tuple, lists))) == 1:
        return None
    owners = {layer: stage.rank for stage in problem.stages if stage.layers is not None for layer in range(*stage.layers)}
    trained = [lists[owners[layer]][layer] for layer in sorted(owners) if lists[owners[layer]]]
    shapes = [[kind.partition(" ")[2] for kind in known] for known in lists]
    for rank, known in enumerate(lists):
        others: list[tuple[Sequence[str], Sequence[str], int | None]] = [
            (shapes[rank], shapes[other], other) for other in range(rank) if _may_be_one(shapes[rank], shapes[other])
        ]
        if len(trained) == len(owners):
            others.insert(0, (known, trained, None))
        for own, theirs, at in others:
            if list(own) != list(theirs) and sorted(own) == sorted(theirs):
                layer = next(layer for layer, (one, other) in enumerate(zip(own, theirs, strict=True)) if one != other)
                found, where = (trained, f"{owners[layer]}, which trains it") if at is None else (lists[at], f"{at}")
                return (
                    f"layer {layer} of the model is {known[layer]} on rank {rank}, and {found[layer]} on rank {where};"
                    " give build_stages the same layers in the same order on all ranks"
                )
    return None


def _may_be_one(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of shapes may be of one whole model: empty where a layer has no parameters."""
    return [*map(bool, one)] == [*map(bool, other)] and any(own == theirs != "" for own, theirs in zip(one, other, strict=True))

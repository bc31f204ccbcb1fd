"""How all ranks agree at load: each says all that it was given, once, and all find the same reason why they cannot train together.

Reasons are in words that name the first two ranks that differ, and what to give them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import CheckFailed, InvalidInput, SchedcError
from schedc.ir import Plan, Problem
from schedc.runtime.common.program import replicas_of, wires_of
from schedc.runtime.session.acceptance import read
from schedc.runtime.transports.choice import check_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.transports.choice import TransportRequest


def plan_digest(plan: Plan) -> str:
    """A digest of all that a plan says, but its origin, by which ranks know whether they have the same to run."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()


class Offer(NamedTuple):
    """What a rank says about a plan that it was given, at load or to move to."""

    refusal: str | None
    """Why it does not take it; None: it does."""
    digest: str = ""
    """`plan_digest` of it; empty where it refuses."""


ACCEPTED = Offer(None)
LOADED = "what the others have loaded"
"""What ranks wait for here, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All that a rank says to the others before a pipe is opened."""

    rank: int
    plan: Offer = ACCEPTED
    """Of the plan as such: that it can be read and, as rank 0 finds for all, is sound."""
    refusal: str | None = None
    """Why it does not take the plan with what it was given; None: it does."""
    beside: tuple[str, ...] = ()
    """The groups in which it is connected to other pipelines."""
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
    ties: bool = False
    """Whether `build_stages` has found layers of other ranks that share its weights."""
    agrees: bool = True
    """Whether its step may run again, as far as its hooks between replicas go."""


def agree(
    plan: Path | str | Plan,
    own: Agreement,
    accept: Callable[[Plan, Agreement], Agreement],
    groups: Groups,
    steps: int | None = None,
) -> tuple[Plan, list[Agreement]]:
    """The plan, once every rank of every pipeline takes it and all have the same, and what all ranks of this pipeline say.

    All ranks say all of it at once. Where some are connected to other pipelines, they then say it there, and all ranks of this one
    exchange once more what they have found by that.

    Args:
        plan: the plan file, or the plan.
        own: what this rank was given besides.
        accept: takes a plan, which need not be sound but names only stages and ranks that it has; says what this rank finds, or
            refuses.
        groups: of this pipeline; beside them those to the same rank of other pipelines.
        steps: where the plan is a period of steps that overlap: of how many steps a run is taken for it.

    Raises:
        SchedcError: why not, on all ranks.
    """
    checked: Plan | None = None
    refusal: SchedcError | None = None
    try:  # rank 0 verifies the plan for all: those that have the same need not do it again
        checked = read(plan, verify=groups.rank == 0, steps=steps)
        own = replace(own, plan=Offer(None, plan_digest(checked)))
        if _is_whole(checked):  # else rank 0 refuses it, or has another
            own = accept(checked, own)
    except SchedcError as error:
        refusal = error
        own = replace(own, plan=Offer(str(error))) if checked is None else replace(own, refusal=str(error))
    said = groups.exchange(own, LOADED)
    reason = disagreement([one.plan for one in said], groups.size)
    if reason is not None and checked is not None:
        refusal = CheckFailed(reason)
    for others in groups.beside:
        peers = others.exchange(replace(own, refusal=None if refusal is None else str(refusal)), LOADED)
        reason = _unlike_peers(peers, others.name)
        if reason is not None and refusal is None:
            refusal = CheckFailed(reason)
    refusals = [one.refusal for one in said]
    if any(one.beside for one in said):
        refusals = groups.exchange(None if refusal is None else str(refusal), LOADED)
    if refusal is not None:
        raise refusal
    reason = disagreement([Offer(one) for one in refusals], groups.size)
    if reason is not None:
        raise CheckFailed(reason)
    assert checked is not None
    reason = _unlike_weights(checked.problem, {stage: digest for one in said for stage, digest in one.weights.items()})
    if reason is not None:
        raise CheckFailed(reason)
    reason = _unlike_ranks(said)
    if reason is None and any(one.layers for one in said):
        from schedc.runtime.session.building import unlike_layers

        reason = unlike_layers(checked.problem, [one.layers for one in said])
    if reason is not None:
        raise InvalidInput(reason)
    wires = [(wire.source, wire.destination) for wire in wires_of(checked)]
    check_requests([one.request for one in said if one.request is not None], wires)
    return checked, said


def _is_whole(plan: Plan) -> bool:
    """Whether it has the stages of its paths and its ranks, so that it can be looked at; a verifier asks for much more."""
    problem = plan.problem
    known = range(len(problem.stages))
    return len(plan.ranks) == problem.ranks and all(path and {*path} <= {*known} for path in problem.paths)


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


def _unlike_peers(said: Sequence[Agreement], group: str) -> str | None:
    """What keeps peers, by pipeline, from training together; only those of a `data_parallel_group` have the same weights."""
    first = said[0]
    for pipeline, other in enumerate(said):
        if other.refusal is not None:
            return f"rank {other.rank} of pipeline {pipeline} has refused the plan: {other.refusal}"
    for pipeline, other in enumerate(said):
        both = f"pipelines 0 and {pipeline}"
        if other.rank != first.rank:
            return (
                f"the {group} has rank {first.rank} of pipeline 0 and rank {other.rank} of pipeline {pipeline};"
                " give it the processes of the same rank"
            )
        if other.plan.digest != first.plan.digest:
            return f"{both} have different plans; give all the same file"
        if other.options != first.options:
            return f"{both} {_unlike_options(first, other)}; give all the same"
        for stage, digest in first.weights.items() if group == "data_parallel_group" else ():
            if other.weights[stage] != digest:
                return f"{both} have different weights of stage {stage}; build both from the same seed or checkpoint"
    return None


def _unlike_ranks(said: Sequence[Agreement]) -> str | None:
    """Which two ranks of a pipeline load differently."""
    first = said[0]
    for at, other in enumerate(said):
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


def _unlike_options(one: Agreement, other: Agreement) -> str:
    """In which option two ranks differ."""
    name = next(name for name in one.options if one.options[name] != other.options[name])
    return f"load with {name}={one.options[name]} and {name}={other.options[name]}"


def _unlike_weights(problem: Problem, digests: Mapping[int, str]) -> str | None:
    """Which two stages that are replicas of each other in a pipeline do not start equal; `digests` is of all that are."""
    for first, *others in replicas_of(problem):
        for other in others:
            if digests[first] != digests[other]:
                return (
                    f"stages {first} and {other} are replicas, but their weights differ;"
                    " build both from the same seed or checkpoint"
                )
    return None

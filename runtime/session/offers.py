"""What each rank says about a plan that it was given, at `load` and when it moves to another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.ir.plan import Plan
    from schedc.runtime.transports.requests import TransportRequest


def plan_digest(plan: Plan) -> str:
    """A digest of all that a plan says, by which ranks know whether they have the same."""
    return hashlib.sha256(repr(plan).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a rank says about the plan that it was given."""

    refusal: str | None
    """Why it does not take it; None: it does."""
    digest: str
    """`plan_digest` of it; empty where it refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a rank sends to the others before a pipe is opened."""

    rank: int
    offer: Offer = Offer(refusal=None, digest="")
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


def disagreement(offers: Sequence[Offer], ranks: int) -> str | None:
    """Why the ranks cannot all run the plan that each was given; None where they can.

    Args:
        offers: of all ranks; of several pipelines one after the other, where they are to agree.
        ranks: how many a pipeline has.
    """
    if all(offer.refusal is None and offer.digest == offers[0].digest for offer in offers):
        return None
    from schedc.runtime.session.disagreeing import differing_plans

    return differing_plans([(offer.refusal, offer.digest) for offer in offers], ranks)

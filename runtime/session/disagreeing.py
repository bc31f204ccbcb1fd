"""Why ranks cannot train together, in words: imported where they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.ir.problem import Problem


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


def unlike_options(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """In which option two ranks differ."""
    name = next(name for name in one if one[name] != other[name])
    return f"load with {name}={one[name]} and {name}={other[name]}"


def unlike_ranks(ways: Sequence[tuple[bool, int, Mapping[str, str]]]) -> str:
    """Which two ranks load differently.

    Args:
        ways: of each whether it wraps its wires, over how many pipelines it sums gradients, and its options.
    """
    at, other = next((at, way) for at, way in enumerate(ways) if way != ways[0])
    if other[0] != ways[0][0]:
        return f"ranks 0 and {at} load with and without wrap; give all ranks the same"
    if other[2] != ways[0][2]:
        return f"ranks 0 and {at} {unlike_options(ways[0][2], other[2])}; give all ranks the same"
    return (
        f"rank 0 sums its gradients over {ways[0][1]} pipelines, rank {at} over {other[1]};"
        " give all ranks the same data_parallel_group or replicas"
    )


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

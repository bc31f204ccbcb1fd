"""A model's layers on unlike devices: the slowest of replicas, those of each rank, and sums that hold however they are divided.

Takes what the layers cost on each device. Pure functions.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import structs

from schedc.costs.layers import merged
from schedc.study.tune.layer_costs import totals_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.formats.profile_file import LayerEntry
    from schedc.study.tune.layer_costs import LayerCosts, Totals

DURATIONS_NS = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns", "forward_again_ns")
SIZES = ("activation_bytes", "activation_after_input_bytes", "message_bytes", "gradient_message_bytes")
THOUSANDTHS = 1000
"""Speeds of devices are whole thousandths of the first rank's."""


def speeds_of(costs: Sequence[LayerCosts]) -> tuple[int, ...]:
    """How fast devices are, in thousandths of the first: by all blocks of the same model on each."""
    works_ns = [max(1, each.totals.forward_ns + each.totals.backward_ns) for each in costs]
    return tuple(max(1, round(THOUSANDTHS * works_ns[0] / own_ns)) for own_ns in works_ns)


@lru_cache(maxsize=256)
def slowest_of(costs: tuple[LayerCosts, ...]) -> LayerCosts:
    """Of devices that compute the same layers at the same time, each layer's block as long as where it takes longest."""
    return costs[0] if len(costs) == 1 else _combined(costs, [_extreme(entries, max) for entries in _by_layer(costs)])


def placed_costs(costs: Sequence[LayerCosts], speeds: Sequence[int], own: Sequence[int]) -> LayerCosts:
    """Layers whose durations, divided by the speed of the device that has them, are those of that device.

    `costs` are of the same layers on several devices, whose speeds are in thousandths; `own` says for each layer which of them has
    it.
    """
    entries = [_scaled(found[kind], speeds[kind]) for found, kind in zip(_by_layer(costs), own, strict=True)]
    return _combined(costs, entries)


def least_of(costs: Sequence[LayerCosts], ranks: Sequence[int]) -> Totals:
    """Sums that hold however layers are divided among ranks with different devices.

    A path takes of each layer at least what it takes where it is fastest. Some rank has of the work at least what follows: with any
    weights of the ranks that are above 0, the rank with the most work has no less than the weighted mean, and a layer adds its time
    on one of the ranks, times the weight of that. So the sum over layers of the least such product, divided by the sum of the
    weights, is a bound. Weights are the devices' speeds, with which the products are about equal. `ranks` says how many
    have each of the devices.
    """
    speeds, split = speeds_of(costs), costs[0].split_backward
    least = _combined(costs, [_extreme(entries, min) for entries in _by_layer(costs)])
    both = [Fraction(0), Fraction(0)]
    for layers in _by_layer(costs):
        single = [totals_of([layer], split_backward=split) for layer in layers]
        both[0] += min(speed * (own.forward_ns + own.backward_ns) for speed, own in zip(speeds, single, strict=True))
        both[1] += min(speed * own.again_ns for speed, own in zip(speeds, single, strict=True))
    weights = sum(speed * count for speed, count in zip(speeds, ranks, strict=True))
    return replace(least.totals, of_unlike=(both[0] / weights, both[1] / weights))


def _by_layer(costs: Sequence[LayerCosts]) -> list[tuple[LayerEntry, ...]]:
    """Of each layer its entries on the devices."""
    return list(zip(*(each.each for each in costs), strict=True))


def _combined(costs: Sequence[LayerCosts], entries: Sequence[LayerEntry]) -> LayerCosts:
    title = "; ".join(dict.fromkeys(each.title for each in costs))
    return replace(costs[0], entries=merged(entries) if costs[0].parts else tuple(entries), title=title, text="")


def _extreme(entries: Sequence[LayerEntry], choose: Callable[[list[int]], int]) -> LayerEntry:
    """The largest, or the least, of each quantity; what one entry alone says, the others have by its default."""
    values: dict[str, int | None] = {}
    for name in (*DURATIONS_NS, *SIZES):
        found = [getattr(entry, name) for entry in entries]
        default = {"backward_ns": "whole_ns", "forward_again_ns": "forward_ns", "gradient_message_bytes": "message_bytes"}.get(name)
        said = [
            (getattr(entry, default) if default else 0) if each is None else each
            for each, entry in zip(found, entries, strict=True)
        ]
        values[name] = None if all(each is None for each in found) else choose([each or 0 for each in said])
    return structs.replace(entries[0], **values)


def _scaled(entry: LayerEntry, speed: int) -> LayerEntry:
    """The durations such that, divided by the speed, none is shorter than it was."""
    values = {name: getattr(entry, name) for name in DURATIONS_NS}
    return structs.replace(entry, **{name: None if ns is None else -(-ns * speed // THOUSANDTHS) for name, ns in values.items()})

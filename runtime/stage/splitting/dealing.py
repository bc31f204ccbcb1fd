"""Which joints belong to which part of a W that is cut: imported where one is."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def dealt(weights: Sequence[int], shares: Sequence[int]) -> list[list[int]]:
    """The joints of each part, in order: a joint goes to the part in whose share the middle of its weights lies.

    Args:
        weights: of each joint, how many elements its weights have.
        shares: the relative time of each part.
    """
    ends = list(accumulate(shares))
    total = sum(weights)
    parts: list[list[int]] = [[] for _ in shares]
    before = 0
    for joint, own in enumerate(weights):
        middle = (2 * before + own) * ends[-1]
        parts[min(bisect_left([2 * total * end for end in ends], middle), len(ends) - 1)].append(joint)
        before += own
    return parts

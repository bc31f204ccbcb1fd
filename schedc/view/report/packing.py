"""Columns of integers as short text, which `page/decode.js` reads: a hundred thousand ops are a few hundred kilobytes.

A column is base64 of a tag, the number of values and varints: little-endian groups of seven bits, signs in the lowest bit (zigzag).
The tag says what the varints are, whichever is shortest: the values, their differences, or places in a palette that is before them.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PLAIN, DIFFERENCES, PALETTE = 0, 1, 2
MOST_COLOURS = 4096
"""How many different values a palette may have."""


def packed(values: NDArray[np.int64] | Sequence[int]) -> str:
    """The column as text; the same values give the same text."""
    column = np.asarray(values, np.int64)
    ways = [(PLAIN, _varints(column)), (DIFFERENCES, _varints(np.diff(column, prepend=0)))]
    colours, places = np.unique(column, return_inverse=True)
    if len(colours) <= MOST_COLOURS:
        size = _varints(np.array([len(colours)]))
        many = len(colours) > 1  # one value needs no places
        ways.append((PALETTE, size + _varints(np.diff(colours, prepend=0)) + _varints(places[: len(places) * many])))
    tag, content = min(ways, key=lambda way: len(way[1]))
    return base64.b64encode(bytes([tag]) + _varints(np.array([len(column)])) + content).decode()


def _varints(values: NDArray[np.int64]) -> bytes:
    """The integers one after another, in one to ten bytes each."""
    unsigned = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    sizes = np.ones(len(values), np.int64)
    for group in range(1, 10):
        sizes += unsigned >= np.uint64(1 << 7 * group)
    first = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), np.uint8)
    for group in range(int(sizes.max(initial=0))):
        has = sizes > group
        more = np.where(sizes[has] > group + 1, 0x80, 0)
        out[first[has] + group] = ((unsigned[has] >> np.uint64(7 * group)) & np.uint64(0x7F)) | more.astype(np.uint64)
    return out.tobytes()

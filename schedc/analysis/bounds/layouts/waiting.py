"""What memory makes a rank with one stage wait, for any layers in a row as that stage at once.

Matrices [first, last] in and out, as in `pieces`. The arguments are those of `residency_bound_of_rank` (slots) and of
`idle_gap_bound_of_rank`, which have the proofs; here they take heads, tails and absences from all layouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from schedc.analysis.bounds.layouts.pieces import Matrix, Pieces

MOST_CELLS = 2**26
"""Above this many gaps × activations × pieces, idle gaps are not counted; what an activation's stay takes is."""


def most_work_in_gaps_ns(pieces: Pieces, microbatches: int) -> list[Matrix]:
    """Per gap j, from the j-th end of a forward to the j-th start of a backward, the most work in it.

    Empty where memory limits nothing, or it is too much to compute. Proof: at `idle_gap_bound_of_rank`. Of the first j
    microbatches x − 1 others may run their gradient parts in the gap, y − 1 their rests, where x ≤ y ≤ j and x of what a gradient
    part releases and y of the rest have room at once.
    """
    slots = _slots(pieces, microbatches)
    possible = np.isfinite(pieces.forward_ns)
    most_slots = int(slots[possible].max(initial=0))
    limited = np.isfinite(pieces.room_bytes)
    if not (possible & limited).any() or most_slots * microbatches * slots.size > MOST_CELLS:
        return []
    room = np.where(limited, pieces.room_bytes, 0)
    pairs: list[tuple[int, Matrix]] = []
    for x in range(1, most_slots + 1):
        left = room - x * pieces.by_gradient_bytes
        y = np.floor_divide(left, pieces.by_rest_bytes, out=np.full(slots.shape, np.inf), where=pieces.by_rest_bytes > 0)
        y = np.where(limited & (slots < microbatches), y, np.inf)
        pairs.append((x, np.where((left >= 0) | ~limited, y, -1)))
    found = []
    for j in range(1, microbatches + 1):
        backwards_ns = np.zeros(slots.shape)
        for x, most_y in pairs[:j]:
            y = np.minimum(most_y, j)
            here_ns = (x - 1) * pieces.most_gradient_ns + (y - 1) * pieces.most_rest_ns
            backwards_ns = np.where(y >= x, np.maximum(backwards_ns, here_ns), backwards_ns)
        forwards = np.minimum(microbatches - j, slots - 1)
        found.append(forwards * pieces.most_forward_ns + backwards_ns)
    return found


def stays_ns(microbatches: int, pieces: Pieces, head_ns: Matrix, tail_ns: Matrix, away_ns: Matrix) -> Matrix:
    """The least objective by the stay of activations.

    An activation stays from the start of its forward to the end of its gradient part; at most `slots` do at once, so some
    slot holds microbatches / slots of them, rounded up, one after another, between the head and the tail.
    """
    slots = np.maximum(_slots(pieces, microbatches), 1)
    stay_ns = pieces.forward_ns + away_ns + pieces.gradient_ns
    found: Matrix = head_ns + np.ceil(microbatches / slots) * stay_ns + tail_ns
    return found


def idle_ns(microbatches: int, pieces: Pieces, most_work_ns: list[Matrix], away_ns: Matrix) -> Matrix:
    """The most idle time of disjoint gaps, which comes on top of the rank's work (`idle_gap_bound_of_rank`)."""
    slots = np.maximum(_slots(pieces, microbatches), 1).astype(np.int64)
    found = np.zeros((microbatches + 1, *slots.shape))
    known_ns = np.where(np.isfinite(away_ns), away_ns, 0)
    for j in range(1, microbatches + 1):
        earlier = np.maximum(0, j - slots)[None]
        here_ns = np.maximum(0, known_ns - most_work_ns[j - 1]) + np.take_along_axis(found, earlier, axis=0)[0]
        found[j] = np.maximum(found[j - 1], here_ns)
    last: Matrix = found[-1]
    return last


def _slots(pieces: Pieces, microbatches: int) -> Matrix:
    """How many activations fit at once; all, if all do; at least 0."""
    activation = pieces.activation_bytes
    counts = (activation > 0) & np.isfinite(pieces.room_bytes)
    fit = np.floor_divide(pieces.room_bytes, activation, out=np.full(activation.shape, np.inf), where=counts)
    slots: Matrix = np.clip(fit, 0, microbatches)
    return slots

"""Causal attention of a sequence in slices: each slice attends to itself and to the keys and values of all slices before it.

These are the *state* that goes from slice to slice, and whose gradients come back. It is a tuple with a pair of tensors for each
slice, as that slice has made them: a slice adds its own and copies none, so that stages that recompute hold each key once.
Attention itself wants them in one piece: autograd keeps, besides queries and output, a copy of the keys and values up to the slice.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from schedc.errors import InvalidInput

AttentionState: TypeAlias = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""The keys and the values of each slice so far, batch × heads × length × width of a head; of no slice `()`."""


def length_of(state: AttentionState | None) -> int:
    """How many tokens lie before a slice that gets this state: the position of its first token."""
    return sum(keys.shape[-2] for keys, _ in state or ())


def slice_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, state: AttentionState | None, *, scale: float | None = None
) -> tuple[torch.Tensor, AttentionState]:
    """Causal attention of one slice, by torch's `scaled_dot_product_attention`; exact, slices may have any lengths.

    Args:
        queries: batch × heads × length × width of a head, with the positions of the whole sequence, as the keys.
        keys: the slice's; its heads may be fewer, if they divide those of the queries (grouped queries).
        values: the slice's, as many heads and tokens.
        state: what the slice before has given; None: this is the first one.
        scale: of the products; None: 1 ÷ √width.

    Returns:
        What the queries find, and the state for the next slice.

    Raises:
        InvalidInput: the state is of other heads or another batch.
    """
    state = (*(state or ()), (keys, values))
    first, shape = state[0][0].shape, keys.shape
    if (*first[:-2], first[-1]) != (*shape[:-2], shape[-1]) or queries.shape[-2] != shape[-2]:
        raise InvalidInput(
            f"a slice has keys {list(shape)} and queries {list(queries.shape)} behind keys {list(first)}; expected the same batch,"
            " heads and width as before, and as many queries as keys"
        )
    behind = length_of(state) - shape[-2]
    before, among = (torch.cat(each, -2) if behind else each[-1] for each in zip(*state, strict=True))
    # is_causal alone would align the first query with the first key of all
    mask = causal_lower_right(shape[-2], behind + shape[-2]) if behind else None
    found = scaled_dot_product_attention(
        queries, before, among, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=queries.shape[-3] != shape[-3]
    )
    return found, state

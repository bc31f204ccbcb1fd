"""Whether all that compute losses of a step divide and scale them by the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_same_way(ways: Sequence[Sequence[float]], what: str) -> None:
    """Refuse a step whose loss would be neither a sum nor a mean.

    Args:
        ways: of each of them what its losses are divided by, and the scale of its gradients.
        what: they are, for the message: `pipelines`.

    Raises:
        InvalidInput: they differ.
    """
    other = next((way for way in ways if way != ways[0]), None)
    if other is not None:
        (divisor, scale), (second, another) = ways[0], other
        differ = f"divide the loss by {divisor:g} and {second:g}"
        if divisor == second:
            differ = f"scale the gradients by {scale:g} and {another:g}"
        raise InvalidInput(f"two {what} {differ}; give step the same divide_by and scale in all, and weights in all or in none")

"""Lists of tokens as the plan file has them: lines of at most 16 tokens joined by single spaces, so that differences read small.

A plan of 64 ranks and 1,024 microbatches has half a million tokens, most of them several times. So who reads many lists passes
`functools.cache` of what parses a token, and who writes them the lookup in `OpTokens`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from schedc.ir.ops import Op, parse_op, token
from schedc.ir.plan import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.io.location import Location

T = TypeVar("T")

TOKENS_PER_LINE = 16
_INDEX = re.compile("0|[1-9][0-9]{0,17}")
_COLLECTIVE = re.compile(f"(RS|AG)({_INDEX.pattern})")


def read_tokens(parse: Callable[[str], T], lines: Sequence[str], location: Location) -> tuple[T, ...]:
    """What the tokens of the lines mean, which are at `location` of the file.

    Raises:
        InvalidInput: a text is no token, for which `parse` raises `ValueError`; names its line.
    """
    try:
        return tuple(map(parse, " ".join(lines).split()))
    except ValueError:
        for number, line in enumerate(lines):
            for text in line.split():
                try:
                    parse(text)
                except ValueError as error:
                    raise (location / number).error(str(error)) from error
        raise


def lines_of(make: Callable[[T], str], values: Iterable[T]) -> tuple[str, ...]:
    """The tokens of the values as lines."""
    tokens = list(map(make, values))
    return tuple(" ".join(tokens[at : at + TOKENS_PER_LINE]) for at in range(0, len(tokens), TOKENS_PER_LINE))


class OpTokens(dict[Op, str]):
    """The token of each op, made once."""

    def __missing__(self, op: Op) -> str:
        """Make the token."""
        text = self[op] = token(op)
        return text


def parse_plan_op(text: str) -> Op:
    """The op that a token names.

    Raises:
        ValueError: the text is not a token.
    """
    if not text.isascii() or len(text) > 64:  # other scripts' digits are no digits here, and nothing counts that far
        raise ValueError(f"found {text[:64]!r}, expected an op as in F3.12, B3.12, W3.12, BW3.12 or W3.12/0")
    return parse_op(text)


def parse_index(text: str) -> int:
    """The index that a token of `post_before` gives.

    Raises:
        ValueError: the text is not a number from 0.
    """
    if _INDEX.fullmatch(text) is None:
        raise ValueError(f"found {text[:64]!r}, expected an index of the compute queue as in 0 or 17")
    return int(text)


def parse_collective(text: str) -> Collective:
    """The collective that a token names.

    Raises:
        ValueError: the text is not a token.
    """
    match = _COLLECTIVE.fullmatch(text)
    if match is None:
        raise ValueError(f"found {text[:64]!r}, expected a collective as in RS3 or AG3")
    return Collective(match[1], int(match[2]))

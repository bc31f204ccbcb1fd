"""Reading lists of tokens as the plan file has them: lines of tokens joined by single spaces.

A plan of 64 ranks and 1,024 microbatches has half a million tokens, most of them several times: each text is read once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, TypeVar

from schedc.ir.ops import parse_op
from schedc.ir.plan import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.io.location import Location
    from schedc.ir.ops import Op

T = TypeVar("T")

_INDEX = re.compile("0|[1-9][0-9]{0,17}")
_COLLECTIVE = re.compile(f"(RS|AG)({_INDEX.pattern})")


class TokenReader(dict[str, T], Generic[T]):
    """What each token means, parsed once."""

    def __init__(self, parse: Callable[[str], T]) -> None:
        """`parse` says what a token means; it raises `ValueError` for a text that is none."""
        super().__init__()
        self._parse = parse

    def __missing__(self, text: str) -> T:
        """Parse the token."""
        value = self[text] = self._parse(text)
        return value

    def read(self, lines: Sequence[str], location: Location) -> tuple[T, ...]:
        """The tokens of the lines, which are at `location` of the file.

        Raises:
            InvalidInput: a text is no token; names its line.
        """
        try:
            return tuple(map(self.__getitem__, " ".join(lines).split()))
        except ValueError:
            for number, line in enumerate(lines):
                for text in line.split():
                    try:
                        self[text]
                    except ValueError as error:
                        raise (location / number).error(str(error)) from error
            raise


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

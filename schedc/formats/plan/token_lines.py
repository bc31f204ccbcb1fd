"""Writing lists of tokens as the plan file has them: lines of at most 16 tokens, so that differences read small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Op, token

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOKENS_PER_LINE = 16


def lines_of(tokens: Sequence[str]) -> tuple[str, ...]:
    """The tokens as lines."""
    return tuple(" ".join(tokens[at : at + TOKENS_PER_LINE]) for at in range(0, len(tokens), TOKENS_PER_LINE))


class OpWriter(dict[Op, str]):
    """The token of each op, made once."""

    def __missing__(self, op: Op) -> str:
        """Make the token."""
        text = self[op] = token(op)
        return text

    def lines(self, ops: Iterable[Op]) -> tuple[str, ...]:
        """The ops as lines of tokens."""
        return lines_of(list(map(self.__getitem__, ops)))

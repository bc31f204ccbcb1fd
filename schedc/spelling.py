"""Nearest known names, for messages about unknown ones; and numbers of things."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `2 microbatches`; of a noun whose plural is regular."""
    return f"{number} {noun}{('es' if noun.endswith(('ch', 'ss')) else 's') * (number != 1)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'latency'?`, or nothing where no known name is near."""
    by_small_letters = {each.casefold(): each for each in known}
    matches = get_close_matches(name.casefold(), list(by_small_letters), n=1, cutoff=0.5)
    return f"; did you mean {by_small_letters[matches[0]]!r}?" if matches else ""


def ranges(numbers: Iterable[int]) -> list[str]:
    """Ascending numbers in few words: `0`, `2-4`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]

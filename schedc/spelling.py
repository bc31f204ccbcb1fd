"""Nearest known names, for messages about unknown ones."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'latency'?`, or nothing where no known name is near."""
    by_small_letters = {each.casefold(): each for each in known}
    matches = get_close_matches(name.casefold(), list(by_small_letters), n=1, cutoff=0.5)
    return f"; did you mean {by_small_letters[matches[0]]!r}?" if matches else ""

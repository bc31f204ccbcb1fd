"""How many random examples a test draws: its number in the whole suite, a quarter of it where the slow tests are left out."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_LEAST = 8
_share: list[int] = [1]


def drop_to_a_quarter() -> None:
    """Called before tests are collected."""
    _share[0] = 4
    settings.register_profile("quick", settings(), max_examples=_LEAST)
    settings.load_profile("quick")


def examples(number: int, **others: Any) -> settings:
    """Hypothesis's settings with that number of examples, or a quarter of it, but no fewer than 8 where the number is larger."""
    return settings(max_examples=min(number, max(_LEAST, number // _share[0])), **others)

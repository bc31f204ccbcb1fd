"""The search over layouts with little work: few of them, evaluated by the kernel in Python, so nothing waits for a compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.solvers.driver import layout_search, layouts
from schedc.solvers.layout.climb import LayoutClimb

if TYPE_CHECKING:
    import pytest


def seek_few_layouts(patch: pytest.MonkeyPatch) -> None:
    """About a hundred and fifty layouts for a constructive method, and 400 for each unit of work."""
    patch.setattr(layout_search, "OPS_PER_UNIT", 400_000)
    patch.setattr(layouts, "compile_ahead", lambda *_: None)
    patch.setattr(layout_search, "at_hand", lambda _: True)
    patch.setattr(layout_search, "LayoutClimb", lambda *given, **named: LayoutClimb(*given, **{**named, "plain": True}))

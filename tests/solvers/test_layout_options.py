"""The layouts that the driver hands to a method: each once, under the first of its names. And a search that begins too late."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.compile.open_layout import compile_layouts
from schedc.ir.layout import OpenLayout
from schedc.ir.workload import Device, Layer, Network, Workload
from schedc.solvers.common.base import Limits
from schedc.solvers.driver import layout_search, layout_trials, layouts
from schedc.solvers.driver.layout_options import LayoutOptions
from schedc.solvers.driver.layout_trials import HANDED_ON
from schedc.solvers.layout.baselines import named_layouts

if TYPE_CHECKING:
    import pytest

LAYER = Layer(forward_ns=(1000,), backward_input_ns=(1000,), backward_weight_ns=(1000,), backward_ns=(2000,))
LIKE = Workload(name="like", microbatches=4, layers=(LAYER,) * 8, devices=(Device(),) * 2, network=Network(site_of_rank=(0, 0)))


def test_a_layout_with_two_names_is_one_option_under_the_first() -> None:
    """Like layers: the even partitions are the balanced ones, which come first and are handed on by name."""
    options = LayoutOptions(LIKE)
    named = named_layouts(LIKE, OpenLayout(chunks=2))
    assert len(named) == 6
    for name in sorted(named, key=lambda name: name.startswith("even")):
        options.add(name, named[name])
    titles = {option.title for option in options.hopeful(None)}
    assert titles == {"balanced unidirectional", "balanced loop 2", "balanced wave 2"} <= set(HANDED_ON)
    options.add("found 7", named["even wave 2"])
    assert {option.title for option in options.hopeful(None)} == titles


def test_the_time_may_be_over_when_the_search_for_layouts_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling took all of it; nobody listens to signals, so nothing ended that. What was found before counts."""
    monkeypatch.setattr(layouts, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(layout_search, "at_hand", lambda _: False)
    monkeypatch.setattr(layout_search, "compiled", lambda _: time.sleep(0.4))
    monkeypatch.setattr(layout_search, "EXACT_OPS", 0)
    monkeypatch.setattr(layout_trials, "HANDED_ON", ())
    uneven = replace(LIKE, layers=(LAYER, replace(LAYER, forward_ns=(7000,)), *LIKE.layers[2:]))
    made = compile_layouts(uneven, OpenLayout(chunks=2), limits=Limits(time_s=0.3))
    assert made.plan.certificate.makespan_ns > 0

"""The layouts that the driver hands to a method: each once, under the first of its names. And a search that begins too late."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.analysis.bounds.clock import never
from schedc.analysis.bounds.lower_bounds import best_bound, simple_bound
from schedc.compile.driver import OpenLayouts, compile_question
from schedc.ir.layout import OpenLayout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver import layout_search, layouts, portfolio
from schedc.solvers.driver.layout_work import LayoutWork
from schedc.solvers.driver.layouts import HANDED_ON
from schedc.solvers.layout.baselines import named_layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.incumbent import Incumbent

LAYER = Layer(forward_ns=(1000,), backward_input_ns=(1000,), backward_weight_ns=(1000,), backward_ns=(2000,))
LIKE = Workload(name="like", microbatches=4, layers=(LAYER,) * 8, devices=(Device(),) * 2, network=Network(site_of_rank=(0, 0)))


def test_a_layout_with_two_names_is_one_option_under_the_first() -> None:
    """Like layers: the even partitions are the balanced ones, which come first and are handed on by name."""
    work = LayoutWork(workload=LIKE, open_layout=OpenLayout(chunks=2))
    named = named_layouts(LIKE, OpenLayout(chunks=2))
    assert len(named) == 6
    for name in sorted(named, key=lambda name: name.startswith("even")):
        work.add(name, named[name])
    titles = {option.title for option in work.hopeful()}
    assert titles == {"balanced unidirectional", "balanced loop 2", "balanced wave 2"} <= set(HANDED_ON)
    work.add("found 7", named["even wave 2"])
    assert {option.title for option in work.hopeful()} == titles


def test_an_option_without_time_has_a_bound_that_is_true() -> None:
    """What takes long is left out, and comes later if there is time then."""
    layout = named_layouts(LIKE, OpenLayout(chunks=2))["balanced wave 2"]
    late, known = (
        LayoutWork(workload=LIKE, open_layout=OpenLayout(chunks=2), until=until).add("", layout) for until in (lambda: True, never)
    )
    assert late is not None and known is not None
    problem = problem_of(LIKE, layout)
    assert not late.is_bounded
    assert simple_bound(problem).value_ns <= late.bound_ns <= known.bound_ns == best_bound(problem).value_ns
    late.tighten(None, never)
    assert (late.bound_ns, late.is_bounded) == (known.bound_ns, True)


def test_the_last_layouts_get_no_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that make a schedule at once get some seconds however short the limit; where a plan is known, only what is left."""
    given: list[float] = []

    def solve(*args: object, least_s: float, known: Sequence[tuple[Schedule, str]] = (), **options: Any) -> Incumbent:
        given.append(least_s)
        return portfolio.solve(*args, least_s=least_s, known=known, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(layouts, "solve", solve)
    monkeypatch.setattr(layout_search, "EXACT_OPS", 0)
    uneven = replace(LIKE, layers=(LAYER, replace(LAYER, forward_ns=(7000,)), *LIKE.layers[2:]))
    compile_question(OpenLayouts(uneven, OpenLayout(chunks=2)), SearchSettings(limits=Limits(time_s=1.5)))
    assert all(each <= 1.5 for each in given)
    given.clear()
    compile_question(OpenLayouts(uneven, OpenLayout(chunks=2)), SearchSettings(limits=Limits(deterministic=0.1, workers=1)))
    assert set(given) == {portfolio.CONSTRUCTIVE_S}


def test_the_time_may_be_over_when_the_search_for_layouts_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling took all of it; nobody listens to signals, so nothing ended that. What was found before counts."""
    monkeypatch.setattr(layouts, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(layout_search, "at_hand", lambda _: False)
    monkeypatch.setattr(layout_search, "compiled", lambda _: time.sleep(0.4))
    monkeypatch.setattr(layout_search, "EXACT_OPS", 0)
    monkeypatch.setattr(layouts, "HANDED_ON", ())
    uneven = replace(LIKE, layers=(LAYER, replace(LAYER, forward_ns=(7000,)), *LIKE.layers[2:]))
    made = compile_question(OpenLayouts(uneven, OpenLayout(chunks=2)), SearchSettings(limits=Limits(time_s=0.3)))
    assert made.plan.certificate.makespan_ns > 0

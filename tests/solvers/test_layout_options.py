"""The layouts that the driver hands to a method: one for each layout, under the first of its names."""

from __future__ import annotations

from schedc.ir.layout import OpenLayout
from schedc.ir.workload import Device, Layer, Network, Workload
from schedc.solvers.driver.layout_options import Options
from schedc.solvers.driver.layouts import HANDED_ON
from schedc.solvers.layout.baselines import named_layouts


def test_a_layout_with_two_names_is_one_option_under_the_first() -> None:
    """Like layers: the even partitions are the balanced ones, which come first and are handed on by name."""
    layer = Layer(forward_ns=(1000,), backward_input_ns=(1000,), backward_weight_ns=(1000,), backward_ns=(2000,))
    workload = Workload(
        name="like", microbatches=4, layers=(layer,) * 8, devices=(Device(),) * 2, network=Network(site_of_rank=(0, 0))
    )
    options = Options(workload)
    named = named_layouts(workload, OpenLayout(chunks=2))
    assert len(named) == 6
    for name in sorted(named, key=lambda name: name.startswith("even")):
        options.add(name, named[name])
    titles = {option.title for option in options.hopeful(None)}
    assert titles == {"balanced unidirectional", "balanced loop 2", "balanced wave 2"} <= set(HANDED_ON)
    options.add("found 7", named["even wave 2"])
    assert {option.title for option in options.hopeful(None)} == titles

"""Each rule of a layout: a layout that breaks only it, and where; sound ones break none (`tests/lower/test_problem.py`)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import schedc.verify.layout as rules
from schedc.ir.costs import FREE
from schedc.ir.graph import Edge
from schedc.ir.layout import Layout
from schedc.ir.network import Link, Network
from schedc.ir.problem import DataParallel
from schedc.ir.workload import Device, Layer, Semantics, Workload
from schedc.verify.layout import verify_layout
from schedc.verify.workload import verify_workload

LAYER = Layer(forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,), static_bytes=8)
WORKLOAD = Workload(
    name="three layers",
    microbatches=2,
    layers=(LAYER,) * 3,
    devices=(Device(capacity_bytes=15), Device()),
    network=Network(site_of_rank=(0, 1), between=FREE),
    static_bytes=(7,),
    data_parallel=DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5, 5), all_gather_ns=(3,)),
)
LAYOUT = Layout(layers_of_stage=((0, 1), (1, 3)), rank_of_stage=(0, 1), paths=((0, 1),))
UNLIKE = replace(LAYER, forward_ns=(1, 2))
THREE = Layout(layers_of_stage=((0, 1), (1, 2), (2, 3)), rank_of_stage=(0, 1, 2), paths=((0, 1, 2),))
NUMBERED = tuple(replace(LAYER, position=(index, index + 1)) for index in range(3))
SHARED = replace(WORKLOAD, layers=NUMBERED, devices=(Device(),) * 2, data_parallel=None)
DOUBLE = replace(SHARED, layers=NUMBERED * 2)
IDS: dict[str, Any] = {"message_bytes": 3, "value": 1, "gradient_message_bytes": None}
GRAPH = replace(
    SHARED,
    layers=(LAYER,) * 3,
    edges=(Edge(source=1, destination=2), Edge(source=0, destination=1, **IDS), Edge(source=0, destination=2)),
)
ONE_WAY = Network(site_of_rank=(0, 1), links=(Link(source=0, destination=1),))
IDS_ONLY = replace(GRAPH, edges=(*GRAPH.edges[:2], Edge(source=0, destination=2, **IDS)), network=ONE_WAY)
TWO_WAYS = Layout(layers_of_stage=((0, 1), (1, 3), (0, 1), (1, 3)), rank_of_stage=(0, 1, 1, 0), paths=((0, 1), (2, 3)))
OWN_WAYS = replace(TWO_WAYS, layers_of_stage=((0, 1), (1, 3), (3, 4), (4, 6)))


def _layout(**changes: Any) -> Layout:
    return replace(LAYOUT, **changes)


def _workload(**changes: Any) -> Workload:
    return replace(WORKLOAD, **changes)


SPLIT = Layout(layers_of_stage=((0, 1), (1, 2)), rank_of_stage=(0, 1), paths=((0, 1),), split_head=True)
BROKEN = [
    ("split-head", "split_head", replace(SHARED, layers=NUMBERED[:1]), SPLIT, "expected a layer before the head"),
    ("split-head", "split_head", replace(SHARED, semantics=Semantics.TORCH), SPLIT, "expected one path, steps that end"),
    ("split-head", "static_bytes", replace(SHARED, static_bytes=(1, 2)), SPLIT, "expected 1 value where the head has stages"),
    ("split-head", "split_head", replace(SHARED, network=Network(site_of_rank=(0, 1))), SPLIT, "nothing connects rank 1 to rank 0"),
    ("stage-count", "layers_of_stage", WORKLOAD, _layout(layers_of_stage=((0, 3),)), "found 2 with a rank, 1 with layers"),
    ("stage-count", "paths", WORKLOAD, _layout(paths=()), "found none"),
    ("rank-range", "rank_of_stage[2]", SHARED, THREE, "rank 2 does not exist; the ranks are 0 to 1"),
    ("rank-has-stage", "rank_of_stage", WORKLOAD, _layout(rank_of_stage=(0, 0)), "rank 1 has no stage"),
    ("path-stages", "paths[1]", WORKLOAD, _layout(paths=((0, 1), ())), "visits no stage"),
    ("path-stages", "paths[0][2]", WORKLOAD, _layout(paths=((0, 1, 2),)), "stage 2 does not exist"),
    ("path-stages", "paths[0][2]", WORKLOAD, _layout(paths=((0, 1, 0),)), "stage 0 is a duplicate"),
    ("stage-on-path", "paths", WORKLOAD, _layout(paths=((0,),)), "stage 1 is on no path"),
    ("layer-range", "layers_of_stage[1]", WORKLOAD, _layout(layers_of_stage=((0, 1), (1, 4))), "found 1 to 4"),
    ("layer-range", "layers_of_stage[0]", WORKLOAD, _layout(layers_of_stage=((1, 1), (1, 3))), "found 1 to 1"),
    ("stage-values", "static_bytes", _workload(static_bytes=(1, 2, 3)), LAYOUT, "expected 1 value, or 2, one per stage; found 3"),
    ("contiguous", "layers_of_stage[1]", WORKLOAD, _layout(layers_of_stage=((0, 2), (1, 3))), "begins with layer 1, expected 2"),
    ("contiguous", "layers_of_stage[0]", DOUBLE, _layout(layers_of_stage=((0, 5), (5, 6))), "layer 3 begins with layer 0 of the"),
    ("whole-model", "paths", WORKLOAD, _layout(layers_of_stage=((0, 1), (1, 2))), "layer 2 is on no path"),
    ("whole-model", "paths", GRAPH, _layout(layers_of_stage=((0, 1), (1, 2))), "layer 2 is on no path"),
    ("whole-model", "paths[1]", SHARED, replace(TWO_WAYS, layers_of_stage=((0, 1), (1, 3), (1, 2), (2, 3))), "has layers 1 to 3"),
    ("connected", "paths[0]", _workload(network=Network(site_of_rank=(0, 1))), LAYOUT, "nothing connects rank 0 to rank 1"),
    ("connected", "edges[1]", replace(GRAPH, network=Network(site_of_rank=(0, 1))), LAYOUT, "nothing connects rank 0 to rank 1"),
    ("connected", "edges[2]", replace(GRAPH, network=ONE_WAY), LAYOUT, "nothing connects rank 1 to rank 0, of the stages 0 and 1"),
    ("one-path", "paths", replace(GRAPH, layers=NUMBERED), TWO_WAYS, "expected one, which has all stages of a graph, found 2"),
    (
        "one-path",
        "paths",
        replace(SHARED, semantics=Semantics.TORCH),
        TWO_WAYS,
        "expected one, which is all that torch executes, found 2",
    ),
    (
        "capacity",
        "devices[0]",
        _workload(devices=(Device(capacity_bytes=14), Device())),
        LAYOUT,
        "need 15 bytes besides activations",
    ),
    ("slices", "slices", replace(SHARED, slices=(2, 1), microbatches=2), _layout(slices=(1, 2)), "the workload has [2, 1]"),
    ("slices", "slices[1]", SHARED, _layout(slices=(3, 0)), "expected a length of at least 1, found 0"),
    ("slices", "slices", replace(SHARED, layers=(UNLIKE,) * 3), _layout(slices=(3, 1)), "one for all microbatches"),
    ("slices", "slices", replace(SHARED, semantics=Semantics.TORCH), _layout(slices=(3, 1)), "no torch semantics"),
    ("recomputed", "recomputed", WORKLOAD, _layout(recomputed=frozenset({2})), "stage 2 does not exist"),
    ("recomputed", "recomputed", replace(WORKLOAD, semantics=Semantics.TORCH), _layout(recomputed=frozenset({0})), "torch"),
]


@pytest.mark.parametrize(("rule", "place", "workload", "layout", "says"), BROKEN, ids=[f"{case[0]}-{case[1]}" for case in BROKEN])
def test_this_rule_is_broken_first(rule: str, place: str, workload: Workload, layout: Layout, says: str) -> None:
    assert verify_workload(workload) == ()
    found = verify_layout(workload, layout)
    assert (found[0].rule, found[0].place) == (rule, place)
    assert says in found[0].message


@pytest.mark.parametrize(
    ("workload", "layout"), [(WORKLOAD, LAYOUT), (GRAPH, LAYOUT), (IDS_ONLY, LAYOUT), (SHARED, TWO_WAYS), (DOUBLE, OWN_WAYS)]
)
def test_sound_ones_are_accepted(workload: Workload, layout: Layout) -> None:
    assert verify_workload(workload) == verify_layout(workload, layout) == ()


def test_every_check_is_run_and_is_tested() -> None:
    defined = {name.replace("_", "-") for name in re.findall(r"def check_(\w+)", Path(rules.__file__).read_text())}
    assert set(rules.SHAPE.rules + rules.MEANING.rules + rules.OPEN.rules + rules.HEAD.rules) == defined
    assert defined - {"open-layout"} == {case[0] for case in BROKEN}  # which has tests beside the driver's

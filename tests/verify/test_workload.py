"""Each rule of a workload: a workload that breaks only it, and where; sound ones break none (`tests/lower/test_problem.py`)."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import schedc.verify.network as network_rules
import schedc.verify.workload as rules
from schedc.ir.costs import FREE
from schedc.ir.graph import Edge
from schedc.ir.network import Link, Network, SiteLink
from schedc.ir.problem import DataParallel, Updates, Versions
from schedc.ir.workload import Device, Layer, Semantics, TiedWeight, Workload
from schedc.verify.workload import verify_workload

LAYER = Layer(forward_ns=(1,), backward_input_ns=(1,), backward_weight_ns=(1,), backward_ns=(2,), position=(0, 1))
PARALLEL = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5,), all_gather_ns=(3, 3))
NETWORK = Network(
    site_of_rank=(0, 1),
    between=FREE,
    site_links=(SiteLink(source=0, destination=1, cost=FREE),),
    links=(Link(source=0, destination=1),),
)
SOUND = Workload(
    name="sound",
    microbatches=3,
    layers=(LAYER, replace(LAYER, position=(1, 3))),
    devices=(Device(in_flight=2), Device()),
    network=NETWORK,
    data_parallel=PARALLEL,
)


def _workload(**changes: Any) -> Workload:
    return replace(SOUND, **changes)


def _network(**changes: Any) -> Workload:
    return replace(SOUND, network=replace(NETWORK, **changes))


def _parallel(**changes: Any) -> Workload:
    return replace(SOUND, data_parallel=replace(PARALLEL, **changes))


def _layer(**changes: Any) -> Workload:
    return replace(SOUND, layers=(LAYER, replace(LAYER, **({"position": (1, 2)} | changes))))


def _graph(*pairs: tuple[int, ...]) -> Workload:
    edges = tuple(Edge(source=a, destination=b, message_bytes=sum(size)) for a, b, *size in pairs)
    return replace(SOUND, layers=(*SOUND.layers, replace(LAYER, position=(3, 4))), edges=edges)


OVERLAPPING = Updates(versions=Versions.STASH, microbatches=3, is_period=True)
TWICE = NETWORK.site_links * 2
BROKEN = [
    ("counts", "microbatches", _workload(microbatches=0), "expected at least 1, found 0"),
    ("counts", "layers", _workload(layers=()), "at least 1"),
    ("counts", "devices", _workload(devices=(), network=Network(site_of_rank=())), "at least 1"),
    ("microbatch-costs", "layers[1]", _layer(backward_ns=(1, 2)), "expected 1 duration of BW, or 3, one per microbatch; found 2"),
    ("microbatch-costs", "layers[1].forward_again_ns", _layer(forward_again_ns=(1, 2)), "at least 0, or 3, one per microbatch"),
    ("microbatch-costs", "layers[1].forward_again_ns", _layer(forward_again_ns=(-1,)), "found (-1,)"),
    ("layer-values", "layers[1].parameters", _layer(parameters=-1), "expected at least 0, found -1"),
    ("layer-values", "layers[1].static_bytes", _layer(static_bytes=-1), "expected at least 0, found -1"),
    ("layer-values", "layers[1].expert_parameters", _layer(parameters=2, expert_parameters=3), "at most all 2, found 3"),
    ("layer-values", "layers[1].fixed", _layer(fixed=Fraction(1, 2), quadratic=(Fraction(0), Fraction(2, 3))), "at most 1 in all"),
    ("layer-values", "layers[1].state_gradient_bytes", _layer(state_gradient_bytes=-1), "expected at least 0, found -1"),
    ("edges", "edges[0]", _graph((0, 3), (0, 1), (1, 2)), "layer 3 does not exist"),
    ("edges", "edges[1]", _graph((0, 1), (2, 1)), "leads from layer 2 to layer 1, which is before it"),
    ("edges", "edges[2]", _graph((0, 1), (1, 2), (0, 1)), "the edge from layer 0 to layer 1 is already given by edges[0]"),
    ("edges", "edges[1].message_bytes", _graph((0, 1), (0, 2, 5)), "found 5, expected 0 as of the edge before with the same value"),
    ("edges", "edges", _graph((1, 2)), "none joins layer 1 with layer 0"),
    (
        "ties",
        "ties[0].layers",
        _workload(ties=(TiedWeight(layers=(0, 2), gradient_bytes=1),)),
        "expected two of the layers 0 to 1, found (0, 2)",
    ),
    ("modules", "modules", _workload(modules=(2, 2)), "found [2, 2], expected numbers above 0 whose sum is the 2 layers"),
    ("slices", "slices[1]", _workload(slices=(2, 0, 1)), "expected a length of at least 1, found 0"),
    ("slices", "microbatches", _workload(slices=(2, 1)), "expected a multiple of the 2 slices, found 3; each slice counts"),
    ("chain", "edges", replace(_graph((0, 1), (0, 2)), semantics=Semantics.TORCH), "are not run by torch's runtime"),
    ("chain", "slices", _workload(slices=(1, 2, 3), updates=OVERLAPPING), "are not run where steps overlap"),
    ("positions", "layers[1].position", _layer(position=None), "of all layers or of none"),
    ("positions", "layers[1].position", _layer(position=(2, 2)), "found 2 to 2, expected one or more layers"),
    ("devices", "devices[1]", _workload(devices=(Device(), Device(in_flight=1, limit_bytes=3))), "limit_bytes and in_flight"),
    ("devices", "devices[1].speed", _workload(devices=(Device(), Device(speed=Fraction(0)))), "more than 0, found 0"),
    ("devices", "devices[0].capacity_bytes", _workload(devices=(Device(capacity_bytes=-1), Device())), "at least 0, found -1"),
    ("sites", "network.site_of_rank", _workload(devices=(Device(),) * 3), "expected one site for each of the 3 ranks, found 2"),
    ("sites", "network.site_of_rank[0]", _network(site_of_rank=(-1, 1)), "at least 0, found -1"),
    (
        "link-ends",
        "network.site_links[0]",
        _network(site_links=(SiteLink(source=0, destination=2, cost=FREE),)),
        "site 2 does not exist; the sites are 0 to 1",
    ),
    ("link-ends", "network.site_links[0]", _network(site_links=(SiteLink(source=1, destination=1, cost=FREE),)), "two sites"),
    ("link-ends", "network.links[0]", _network(links=(Link(source=-1, destination=1),)), "rank -1 does not exist"),
    ("link-unique", "network.site_links[1]", _network(site_links=TWICE), "0 to 1 is already given by site_links[0]"),
    ("link-unique", "network.links[1]", _network(links=NETWORK.links * 2), "0 to 1 is already given by links[0]"),
    ("static", "static_bytes", _workload(static_bytes=()), "found none"),
    ("static", "static_bytes[1]", _workload(static_bytes=(0, -1)), "found -1"),
    ("collectives", "data_parallel.size", _parallel(size=0), "at least 1"),
    ("collectives", "data_parallel.zero_stage", _parallel(zero_stage=2), "expected 0, 1 or 3, found 2"),
    ("collectives", "data_parallel.all_gather_ns", _parallel(zero_stage=0), "found (3, 3) for 0"),
    ("collectives", "data_parallel.all_gather_ns", _parallel(all_gather_ns=()), "found () for 1"),
    ("collectives", "data_parallel.reduce_scatter_ns", _parallel(reduce_scatter_ns=()), "found none"),
    ("collectives", "data_parallel.reduce_scatter_ns[0]", _parallel(reduce_scatter_ns=(-2,)), "at least 0, found -2"),
    ("names", "semantics", _workload(semantics="jax"), "expected schedc or torch, found 'jax'"),
    ("names", "objective", _workload(objective="speed"), "expected makespan or stage-span, found 'speed'"),
]


@pytest.mark.parametrize(("rule", "place", "workload", "says"), BROKEN, ids=[f"{case[0]}-{case[1]}" for case in BROKEN])
def test_only_this_rule_is_broken(rule: str, place: str, workload: Workload, says: str) -> None:
    found = verify_workload(workload)
    assert [(violation.rule, violation.place) for violation in found] == [(rule, place)]
    assert says in found[0].message


def test_the_sound_one_is_accepted() -> None:
    assert verify_workload(SOUND) == ()


def test_every_check_is_run_and_is_tested() -> None:
    text = "".join(Path(name).read_text() for module in (rules, network_rules) if (name := module.__file__))
    defined = {name.replace("_", "-") for name in re.findall(r"def check_(\w+)", text)}
    assert {*rules.CHECKS.rules, *network_rules.NETWORK.rules} == defined == {case[0] for case in BROKEN}

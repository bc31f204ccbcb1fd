"""Sites of unlike devices: costs and memory by rank, stages as long as devices are fast, and bounds that hold for any partition."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from inputs.tune_jobs import EXPERTS, tiny_request

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.costs.devices import device_named
from schedc.errors import InvalidInput
from schedc.frontend.job import checked_job
from schedc.frontend.job_source import source_of_table
from schedc.ir import Device
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.causes import causes_ns
from schedc.study.tune.estimates import no_room, simple_bound_ns, totals_of
from schedc.study.tune.folder import job_table, write_folder
from schedc.study.tune.layer_costs import PROFILE
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import collectives_ns, optimizer_ns, whole_costs_of
from schedc.study.tune.request import read_request
from schedc.study.tune.search import tune
from schedc.verify.layout import verify_layout

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest

UNLIKE = {"between": {"latency": "1 ms", "bandwidth": "20 GB/s"}, "devices": ["h100", "a100-40"]}
GREEDY = SearchSettings(method="greedy{n_sub=1}")


def room_of(name: str) -> int:
    """Bytes of a device that plans use, of all that its driver says it has."""
    whole = device_named(name).memory_mib * 2**20
    return whole - round(0.06 * whole)


def unlike_request(directory: Path, *, sites: tuple[int, ...] = (2, 4), **sections: Any) -> TuneRequest:
    """The tiny job on H100s in one site and A100s with 40 GB in the other."""
    topology = {**UNLIKE, **sections.pop("topology", {})}
    return tiny_request(directory, sites=sites, topology=topology, **sections)


def pipelines(request: TuneRequest, order: tuple[int, ...] = (0, 1)) -> list[TuneCandidate]:
    """The candidates whose ranks are in both sites, in this order."""
    return [each for each in candidates(request.choices) if each.site_order == order]


def test_a_block_takes_what_it_takes_on_its_device(tmp_path: Path) -> None:
    """Each stage's durations are the sums of its layers' predictions for its own device, whatever is between devices' speeds."""
    request = unlike_request(tmp_path, tune={"ranks": [3], "recompute": ["none"], "chunks": [2]})
    found = [(each, candidate_problem(request, each)) for each in pipelines(request)]
    assert {each.placement for each, _ in found} == {"unidirectional", "loop", "wave"}
    for each, made in found:
        assert each.ranks_of_site == (1, 2)
        fast, slow = (site.costs(each.degrees, each.microbatch_size, False, True).layers for site in request.sites)
        for stage, (first, last) in zip(made.problem.stages, made.layout.layers_of_stage, strict=True):
            layers = (fast if stage.rank == 0 else slow)[first:last]
            for name in ("forward_ns", "backward_input_ns", "backward_weight_ns"):
                least_ns = sum(getattr(layer, name)[0] for layer in layers)
                assert least_ns <= getattr(stage, name)[0] <= least_ns + 4 * len(layers)  # a nanosecond of the first rank each
        rooms = [device.capacity_bytes for device in made.workload.devices]
        assert rooms == [room_of("h100"), room_of("a100-40"), room_of("a100-40")]
        layers_of_rank = [0, 0, 0]
        for rank, (first, last) in zip(made.layout.rank_of_stage, made.layout.layers_of_stage, strict=True):
            layers_of_rank[rank] += last - first
        assert layers_of_rank[0] > max(layers_of_rank[1:]), "the faster device has more layers"
        within = [link for link in made.problem.links if {link.source, link.destination} == {1, 2}]
        assert {link.bytes_per_second for link in within} == {300_000_000_000}, "NVLink of an A100"
        of_stage = [collectives_ns(request, each, 10**7, 0, (10**6, 0), rank=rank) for rank in range(3)]
        assert of_stage[0] != of_stage[1] == of_stage[2]
        assert optimizer_ns(request, each, 10**7, 0, 0) < optimizer_ns(request, each, 10**7, 0, 1)


def test_replicas_in_unlike_sites_take_what_the_slowest_takes(tmp_path: Path) -> None:
    request = unlike_request(tmp_path, sites=(2, 2), tune={"ranks": [2], "recompute": ["none"], "placements": ["unidirectional"]})
    each = next(each for each in candidates(request.choices) if each.across == "data-parallel")
    made = candidate_problem(request, each)
    fast, slow = (site.costs(each.degrees, each.microbatch_size, False, True).layers for site in request.sites)
    assert [layer.forward_ns for layer in made.workload.layers] == [
        max(one.forward_ns, other.forward_ns) for one, other in zip(fast, slow, strict=True)
    ]
    assert set(made.workload.devices) == {Device(capacity_bytes=room_of("a100-40"))}
    alike = tiny_request(tmp_path, sites=(2, 2), topology={**UNLIKE, "devices": ["a100-40", "a100-40"]}, tune={"ranks": [2]})
    slowest = candidate_problem(alike, each)
    assert slowest.problem.data_parallel == made.problem.data_parallel


BOUNDED = [
    {"tune": {"batch": 4, "microbatch_sizes": [1], "zero_stages": [0, 1, 3]}},
    {"sites": (4, 2), "tune": {"batch": 4, "microbatch_sizes": [1], "recompute": ["none"]}, "topology": {"nodes": [4, 1]}},
    {"sites": (1, 1, 2), "topology": {"devices": ["a100-40", "h100", "a100"]}, "tune": {"batch": 4, "recompute": ["none"]}},
    {"config": EXPERTS, "sites": (2, 4), "model": {"ep": [1, 2]}, "tune": {"batch": 8, "microbatch_sizes": [1]}},
    {"memory": {"capacity": ["900 MB", "2 GB"], "reserve": "10 MB"}, "tune": {"batch": 4, "zero_stages": [1]}},
    {
        "loss": {"optimizer": "sgd", "tokens": 10**9, "delay_table": "delays.toml"},
        "tune": {"batch": 4, "microbatch_sizes": [1], "placements": ["unidirectional"], "recompute": ["none"]},
    },
]


@pytest.mark.parametrize("sections", BOUNDED)
def test_first_bounds_hold_and_jobs_that_are_written_are_those_planned(sections: dict[str, Any], tmp_path: Path) -> None:
    table = 'source = "a test"\n[[measured]]\noptimizer = "sgd"\ndelays = 1\ntokens = 1.05\n'
    (tmp_path / "delays.toml").write_text(table, encoding="utf-8")
    request = unlike_request(tmp_path, **sections)
    unlike = 0
    for each in candidates(request.choices):
        totals = totals_of(request, each.alike)
        try:
            made = candidate_problem(request, each)
        except InvalidInput:
            continue  # no room
        assert not no_room(request, each.alike, totals)
        unlike += each.across == "pipeline"
        assert 0 < simple_bound_ns(request, each.alike, totals) <= max(bound.value_ns for bound in lower_bounds(made.problem))
        (tmp_path / PROFILE).write_text(made.costs.profile, encoding="utf-8")
        job = checked_job(source_of_table(job_table(request, each, made), directory=tmp_path, name="other"))
        assert (job.workload, job.layout, job.problem) == (made.workload, made.layout, made.problem)
    assert unlike > 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_first_bound_holds_for_every_partition(order: tuple[int, ...], tmp_path: Path) -> None:
    """All contiguous partitions of a chain on three ranks of two kinds, each with all its bounds: none has a shorter step."""
    request = unlike_request(tmp_path, tune={"batch": 4, "ranks": [3], "microbatch_sizes": [1], "zero_stages": [1]})
    (each, *_) = [each for each in pipelines(request, order) if each.placement == "unidirectional"]
    assert each.alike == pipelines(request)[0].alike, "whose bound is taken for all orders"
    bound_ns, seen = simple_bound_ns(request, each.alike, totals_of(request, each.alike)), set()
    for inner in combinations(range(1, request.choices.layers), 2):
        made = candidate_problem(request, each, [b - a for a, b in pairwise((0, *inner, request.choices.layers))])
        assert not list(verify_layout(made.workload, made.layout))
        work_ns = [
            each.microbatches
            * (stage.forward_ns[0] + min(stage.backward_ns[0], stage.backward_input_ns[0] + stage.backward_weight_ns[0]))
            for stage in made.problem.stages
        ]
        seen.add(max(work_ns))
        assert max(work_ns) >= int(each.microbatches * totals_of(request, each.alike).rank_work_ns(each))
    assert len(seen) > 10 and min(seen) < 1.4 * bound_ns, "a bound worth having"


@pytest.mark.parametrize("sections", [BOUNDED[0], BOUNDED[4]])
def test_what_is_pruned_of_unlike_sites_could_not_be_the_best(sections: dict[str, Any], tmp_path: Path) -> None:
    request = unlike_request(tmp_path, **sections)
    pruned, every = (tune(request, GREEDY, candidate_s=0.0, prune=prune) for prune in (True, False))
    assert pruned.best.step_ns == every.best.step_ns
    steps = {row.candidate: row.step_ns for row in every.rows}
    for row in pruned.rows:
        step_ns = steps[row.candidate]
        assert step_ns is None or row.bound_ns is None or step_ns >= row.bound_ns
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(folder, request, pruned)
    causes = causes_ns(request, pruned.best.candidate, pruned.problem, pruned.plan)
    assert sum(causes.values()) == pytest.approx(pruned.best.step_ns, abs=8) and min(causes.values()) > -8


@pytest.mark.parametrize(
    "sections",
    [
        {"tune": {"batch": 4, "microbatch_sizes": [1], "recompute": ["none"]}, "model": {"device": "a100"}},
        {"sites": (1, 1, 2), "topology": {"devices": ["a100-40", "h100", "a100"]}, "tune": {"batch": 4, "recompute": ["none"]}},
        {"memory": {"capacity": ["700 MB", "2 GB"], "reserve": "10 MB"}, "topology": {"devices": ["a100", "a100"]}},
    ],
)
def test_sites_are_crossed_in_the_best_order_whatever_order_is_given(sections: dict[str, Any], tmp_path: Path) -> None:
    """The same sites named in another order have the same best step, and each order has its own candidates."""
    values = {"sites": (2, 4), **sections}
    keys = {"tune": {**values.get("tune", {}), "across_sites": ["pipeline"]}}
    turned = {"topology": {**UNLIKE, **values.get("topology", {})}, "memory": dict(values.get("memory", {}))}
    first = unlike_request(tmp_path, **{**values, **keys})
    for name, key in (("topology", "devices"), ("memory", "capacity")):
        if key in turned[name]:
            turned[name][key] = turned[name][key][::-1]
    second = unlike_request(tmp_path, **{**values, **keys, **turned, "sites": values["sites"][::-1]})
    orders = {each.site_order for each in candidates(first.choices)}
    assert len(orders) == {2: 2, 3: 6}[len(first.sites)]
    found = [tune(request, GREEDY, candidate_s=0.0) for request in (first, second)]
    assert found[0].best.step_ns == found[1].best.step_ns
    assert {each.best.candidate.site_order for each in found} != {tuple(range(len(first.sites)))}, "one is not the given order"
    of_order: dict[tuple[int, ...], int] = {}
    for row in tune(first, GREEDY, candidate_s=0.0, prune=False).rows:
        if row.step_ns is not None:
            order = row.candidate.site_order
            of_order[order] = min(row.step_ns, of_order.get(order, row.step_ns))
    assert min(of_order.values()) == found[0].best.step_ns and len(set(of_order.values())) > 1, "the order matters"


def test_measured_profiles_by_site(tmp_path: Path) -> None:
    """A slower site's profile is taken for the ranks there; other parameters are another model."""
    request = unlike_request(tmp_path)
    each = pipelines(request)[0]
    for name, site in (("fast.json", 0), ("slow.json", 1)):
        (tmp_path / name).write_text(request.sites[site].costs(each.degrees, 1, False, True).profile, encoding="utf-8")
    keys: dict[str, dict[str, object]] = {
        "tune": {"batch": 8, "profiles": [{"1": "fast.json"}, {"1": "slow.json"}]},
        "topology": {"sites": [2, 4], "within": {"bandwidth": "100 GB/s"}, "between": {"bandwidth": "20 GB/s"}},
        "memory": {"capacity": ["80 GB", "40 GB"]},
    }
    measured = read_request(source_of_table(keys, directory=tmp_path, name="measured"))
    crossing = pipelines(measured)[0]
    for rank, site in ((0, 0), (crossing.ranks - 1, 1)):
        assert whole_costs_of(measured, crossing, rank).layers == request.sites[site].costs(each.degrees, 1, False, True).layers
    found = tune(measured, GREEDY, candidate_s=0.0)
    assert found.plan.certificate.makespan_ns == found.best.step_ns
    text = json.loads((tmp_path / "slow.json").read_text(encoding="utf-8"))
    text["layers"][0]["parameters"] += 1
    (tmp_path / "slow.json").write_text(json.dumps(text), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"slow.json: found layers with other parameters, expected those of .*fast.json"):
        read_request(source_of_table(keys, directory=tmp_path, name="measured"))


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"topology": {"devices": ["h100"]}}, "topology.devices: found 1 value, expected 2, one for each site"),
        ({"topology": {"nodes": [8, 8, 8]}}, "topology.nodes: found 3 values, expected 2, one for each site"),
        ({"topology": {"devices": ["h100", "a101"]}}, r"topology.devices\[1\]: found the device \"a101\""),
        ({"memory": {"capacity": ["80 GB"]}}, "memory.capacity: found 1 value, expected 2, one for each site"),
    ],
)
def test_a_value_for_each_site(sections: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=told):
        unlike_request(tmp_path, **sections)

"""What a job says of layers, devices and the network, whatever its layout."""

from __future__ import annotations

import json
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from inputs.jobs import M70, write_job

from schedc.frontend.job import load_job
from schedc.ir.workload import Device
from schedc.lower.problem import problem_of

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.frontend.job import Job

MS, GIB = 10**6, 2**30
BIDIRECTIONAL = M70.replace("ranks = 8\n", 'ranks = 8\nplacement = "bidirectional"\n')
PROFILE = {
    "format": "schedc.profile",
    "version": 1,
    "layers": [{"repeat": 20, "forward": "1 ms", "backward_input": "2 ms", "backward_weight": "3 ms", "message": "1 B"}],
}


def job(directory: Path, text: str) -> Job:
    return load_job(write_job(directory, text))


def test_any_two_ranks_have_a_link(tmp_path: Path) -> None:
    network = job(tmp_path, M70).workload.network
    found = {pair: network.link(*pair) for pair in permutations(range(8), 2)}
    for (source, destination), link in found.items():
        assert link is not None and (link.source, link.destination) == (source, destination)
        across = (source < 4) != (destination < 4)
        expected_ns = 9_500_000 if {source, destination} == {1, 2} else 76 * MS if across else 10_000
        assert (link.latency_ns, link.trunk) == (expected_ns, f"site{source // 4}>site{destination // 4}" if across else None)


def test_sites_that_nobody_connects(tmp_path: Path) -> None:
    text = M70.replace('[topology.between]\nlatency = "76 ms"\nbandwidth = "0.9 GB/s"\n', "").replace(
        "ranks = [1, 2]", "ranks = [3, 4]"
    )
    network = job(tmp_path, text).workload.network
    assert network.connects(3, 4) and network.connects(4, 3) and not network.connects(3, 5)
    assert network.link(3, 5) is None


def test_costs_by_stage_are_layers_that_no_layout_cuts(tmp_path: Path) -> None:
    made = job(tmp_path, M70)
    assert made.layout.layers_of_stage == tuple((stage, stage + 1) for stage in range(8))
    assert {layer.position for layer in made.workload.layers} == {None}
    assert made.workload.devices == (Device(limit_bytes=8 * GIB),) * 8


def test_replicas_share_their_layers(tmp_path: Path) -> None:
    made = job(tmp_path, BIDIRECTIONAL)
    assert [layer.position for layer in made.workload.layers] == [(piece, piece + 1) for piece in range(8)]
    assert made.layout.layers_of_stage == tuple((piece, piece + 1) for piece in range(8)) * 2


def test_replicas_with_costs_of_their_own_have_layers_of_their_own(tmp_path: Path) -> None:
    durations = ", ".join(f'"{stage + 1} ms"' for stage in range(16))
    made = job(tmp_path, BIDIRECTIONAL.replace('forward = "38 ms"', f"forward = [{durations}]"))
    assert [layer.position for layer in made.workload.layers] == [(piece, piece + 1) for piece in range(8)] * 2
    assert made.layout.layers_of_stage == tuple((stage, stage + 1) for stage in range(16))
    assert [stage.forward_ns for stage in made.problem.stages] == [((stage + 1) * MS,) for stage in range(16)]


@pytest.mark.parametrize("partition", ["", "partition = [1, 2, 3, 14]\n"])
def test_the_same_workload_in_another_layout(tmp_path: Path, partition: str) -> None:
    """The layers do not depend on how the job cuts them; a job that says the other layout has the problem that comes out."""
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    text = (
        '[pipeline]\nranks = 4\nmicrobatches = 4\nNEXT\n[profile]\npath = "profile.json"\n[topology]\nwithin = { latency = "1 ms" }'
    )
    one = job(tmp_path, text.replace("NEXT", partition))
    other = job(tmp_path, text.replace("NEXT", "placement = [3, 1, 0, 2, 1]\npartition = [4, 4, 4, 4, 4]"))
    assert one.workload == other.workload and one.problem != other.problem
    assert problem_of(one.workload, other.layout) == other.problem

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.jobs import read_problem, write_job

from schedc.errors import InvalidInput
from schedc.formats.links import link_topology_toml
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.network import Link
    from schedc.ir.problem import Problem

MS = 1_000_000
PIPELINE = """
[pipeline]
ranks = 6
microbatches = 2
placement = "loop"
chunks = 2
[profile]
forward = "1 ms"
backward_input = "1 ms"
backward_weight = "1 ms"
message = "1 MB"
"""
TOPOLOGY = """
sites = [2, 2, 2]
[within]
latency = "1 us"
bandwidth = "100 GB/s"
[between]
latency = "10 ms"
bandwidth = "1 GB/s"
[[site_link]]
sites = [2, 0]
latency = "30 ms"
[[link]]
ranks = [1, 2]
latency = "12 ms"
directed = true
[[link]]
ranks = [3, 4]
transfer = "5 ms"
trunk = false
[[link]]
ranks = [2, 3]
bandwidth = "50 GB/s"
[[link]]
ranks = [0, 4]
latency = "1 s"
"""


def inline(topology: str) -> str:
    return "[topology]\n" + topology.replace("[[", "[[topology.").replace("\n[w", "\n[topology.w").replace("\n[b", "\n[topology.b")


def read(directory: Path, rest: str) -> Problem:
    problem = read_problem(write_job(directory, PIPELINE + rest))
    assert verify_problem(problem) == ()
    return problem


def costs(link: Link) -> tuple[int, int, str | None]:
    return link.latency_ns, link.occupancy_ns(1_000_000), link.trunk


def test_what_wins(tmp_path: Path) -> None:
    problem = read(tmp_path, inline(TOPOLOGY))
    found = {(link.source, link.destination): costs(link) for link in problem.links}
    assert found == {
        (0, 1): (1_000, 10_000, None),
        (1, 0): (1_000, 10_000, None),
        (1, 2): (12 * MS, MS, "site0>site1"),
        (2, 1): (10 * MS, MS, "site1>site0"),
        (2, 3): (1_000, 20_000, None),
        (3, 2): (1_000, 20_000, None),
        (3, 4): (10 * MS, 5 * MS, None),
        (4, 3): (10 * MS, 5 * MS, None),
        (4, 5): (1_000, 10_000, None),
        (5, 4): (1_000, 10_000, None),
        (5, 0): (30 * MS, MS, "site2>site0"),
        (0, 5): (30 * MS, MS, "site0>site2"),
    }


def test_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    write_job(tmp_path / "clusters", TOPOLOGY, "three.toml")
    included = read(tmp_path, '[topology]\npath = "clusters/three.toml"')
    assert included == read(tmp_path, inline(TOPOLOGY))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('latency = "10 ms"', 'latncy = "10 ms"', "three.toml: between.latncy: found an unknown key"),
        ("[2, 2, 2]", "[2, 2]", "three.toml: sites: found [2, 2], 4 in all, expected sites that add up to the 6 of pipeline.ranks"),
        ("ranks = [0, 4]", "ranks = [2, 3]", "three.toml: link[3].ranks: found [2, 3], which link[2] gives already"),
        ("sites = [2, 0]", "sites = [2, 2]", "three.toml: site_link[0].sites: found [2, 2], expected two different sites"),
        ("[within]", "[within", "three.toml: line 3, column 8: found text that is not TOML"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in TOPOLOGY
    write_job(tmp_path, TOPOLOGY.replace(old, new, 1), "three.toml")
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, '[topology]\npath = "three.toml"')
    assert f"{tmp_path}/{says}" in str(caught.value)


def test_sites_without_between_need_their_links_described(tmp_path: Path) -> None:
    links = "".join(f'[[topology.link]]\nranks = {pair}\nlatency = "4 ms"\n' for pair in ([2, 3], [0, 5]))
    problem = read(tmp_path, f"[topology]\nsites = [3, 3]\n{links}")
    assert costs(problem.link(2, 3)) == (4 * MS, 0, "site0>site1")
    assert costs(problem.link(5, 0)) == (4 * MS, 0, "site1>site0")
    assert costs(problem.link(0, 1)) == (0, 0, None)


HELD = """
inbound = true
[within]
latency = "3 us"
bandwidth = "1 GB/s"
holds_latency = true
[[link]]
ranks = [0, 1]
latency = "5 us"
[[link]]
ranks = [1, 2]
holds_latency = false
"""


def test_a_link_is_held_for_its_latency_and_a_rank_has_one_wire(tmp_path: Path) -> None:
    problem = read_problem(write_job(tmp_path, PIPELINE + _in_job(HELD)))
    assert verify_problem(problem) == ()
    costs = {(link.source, link.destination): (link.setup_ns, link.latency_ns, link.trunk) for link in problem.links}
    assert costs[0, 1] == (5_000, 0, ">rank1")  # as of all links, held
    assert costs[1, 0] == (5_000, 0, ">rank0")
    assert costs[1, 2] == (0, 3_000, ">rank2")
    assert costs[2, 3] == (3_000, 0, ">rank3")
    assert problem.link(2, 3).occupancy_ns(1_000_001) == 1_003_001
    with pytest.raises(InvalidInput, match="inbound: found true with several sites"):
        read_problem(write_job(tmp_path, PIPELINE + _in_job('\nsites = [3, 3]\ninbound = true\n[between]\nlatency = "1 ms"\n')))


def test_such_links_are_written_as_a_topology_and_read_again(tmp_path: Path) -> None:
    problem = read_problem(write_job(tmp_path, PIPELINE + _in_job(HELD)))
    (tmp_path / "links.toml").write_bytes(link_topology_toml(problem))
    again = read_problem(write_job(tmp_path, PIPELINE + '[topology]\npath = "links.toml"\n'))
    assert again.links == problem.links


def _in_job(topology: str) -> str:
    return "[topology]" + topology.replace("[[link]]", "[[topology.link]]").replace("\n[within]", "\n[topology.within]").replace(
        "[between]", "[topology.between]"
    )

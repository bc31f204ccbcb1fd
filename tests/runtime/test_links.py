"""Links between ranks: the line through the times, the ways apart, two processes on loopback, and what happens when one ends."""

from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.jobs import read_problem, write_job
from inputs.plans import plan_of
from runs.forked import run_on_ranks
from runs.processes import DEAD, rank_processes
from runs.transport_runs import measure, measure_without

from schedc.formats.links import links_toml
from schedc.formats.plan.plan_file import write_plan
from schedc.ir.network import Link
from schedc.runtime.profiling.pairs import Agenda, Exchange, fit_link, line_ns, one_way_times
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = "schedc.runtime.links"
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB)
latencies = st.integers(1_000, 200_000_000)
bandwidths = st.integers(1_000_000, 400_000_000_000)


def on_a_line(latency_ns: float, bytes_per_second: float, sizes: tuple[int, ...] = SIZES) -> dict[int, float]:
    return {size: latency_ns + size * 1e9 / bytes_per_second for size in sizes}


def squares(times_ns: dict[int, float], latency_ns: float, ns_per_byte: float) -> float:
    return sum(((latency_ns + size * ns_per_byte) / time - 1) ** 2 for size, time in times_ns.items())


def test_a_line_is_found_again() -> None:
    fit = fit_link(on_a_line(9_500_000, 900_000_000))
    assert (fit.latency_ns, fit.bytes_per_second) == (9_500_000, 900_000_000)
    assert fit.residual < 1e-6


@given(latency_ns=latencies, bytes_per_second=bandwidths)
def test_any_line_is_found_again(latency_ns: int, bytes_per_second: int) -> None:
    """Within the half nanosecond to which the latency is rounded."""
    times = on_a_line(latency_ns, bytes_per_second)
    fit = fit_link(times)
    assert fit.residual < 1e-3
    for size, time in times.items():
        assert line_ns(size, fit.latency_ns, fit.bytes_per_second) == pytest.approx(time, rel=1e-3)


@given(
    times=st.dictionaries(st.integers(10, 30).map(lambda power: 1 << power), st.floats(1e3, 1e9), min_size=2, max_size=8),
    shift=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
)
def test_no_other_line_is_nearer(times: dict[int, float], shift: tuple[float, float]) -> None:
    """Against lines around it, and the level one; also where neither a latency nor a bandwidth below 0 is allowed."""
    fit = fit_link(times)
    slope = 0.0 if fit.bytes_per_second is None else 1e9 / fit.bytes_per_second
    assert fit.latency_ns >= 0
    best = squares(times, fit.latency_ns, slope)
    assert fit.residual == pytest.approx((best / len(times)) ** 0.5, abs=1e-9)
    other = max(0.0, fit.latency_ns * (1 + shift[0]) + shift[0]), max(0.0, slope * (1 + shift[1]) + shift[1] * 1e-3)
    level = len(times) and sum(1 / time for time in times.values()) / sum(1 / time**2 for time in times.values())
    for latency, per_byte in (other, (level, 0.0), (0.0, max(times.values()) / max(times))):
        assert best <= squares(times, latency, per_byte) * (1 + 1e-6) + 1e-3  # what rounding to a nanosecond and a byte may cost


def test_noise_of_some_percent_moves_the_line_by_some_percent() -> None:
    noise = (1.03, 0.97, 1.02, 0.98)
    times = {size: time * factor for (size, time), factor in zip(on_a_line(80_000, 2_700_000_000).items(), noise, strict=True)}
    fit = fit_link(times)
    assert fit.latency_ns == pytest.approx(80_000, rel=0.05)
    assert fit.bytes_per_second == pytest.approx(2_700_000_000, rel=0.05)
    assert 0.005 < fit.residual < 0.04
    assert abs(fit.worst[1]) <= 0.05


def test_a_falling_line_has_no_bandwidth_and_one_below_the_origin_no_latency() -> None:
    assert fit_link({8: 200.0, MIB: 100.0}).bytes_per_second is None
    below = fit_link({MIB: 100_000.0, 2 * MIB: 1_000_000.0})
    assert below.latency_ns == 0
    assert below.bytes_per_second is not None


@pytest.mark.parametrize("times", [{}, {8: 1.0}, {8: 0.0, 16: 1.0}])
def test_no_line(times: dict[int, float]) -> None:
    with pytest.raises(ValueError, match=r"two sizes|above 0"):
        fit_link(times)


def exchanges(forth: tuple[float, float], back: tuple[float, float], ahead_ns: int) -> list[Exchange]:
    """Perfect ones over two unlike ways, each (latency, ns per byte); the follower's clock is ahead."""
    found, now = [], 0
    for size in (8, *SIZES):
        for there, here in ((size, 8), (8, size)):
            turned = round(now + forth[0] + there * forth[1])
            came = round(turned + back[0] + here * back[1])
            found.append(Exchange(there, here, now, turned + ahead_ns, came))
            now = came + 1_000
    return found


def test_one_clock_tells_the_ways_apart() -> None:
    times = one_way_times(exchanges((5_000, 0.5), (70_000, 2.0), ahead_ns=0), one_clock=True)
    forth, back = map(fit_link, times)
    assert (forth.latency_ns, forth.bytes_per_second) == (5_000, 2_000_000_000)
    assert (back.latency_ns, back.bytes_per_second) == (70_000, 500_000_000)


def test_two_clocks_tell_the_bandwidths_apart_and_halve_the_latency() -> None:
    times = one_way_times(exchanges((5_000, 0.5), (70_000, 2.0), ahead_ns=10**15), one_clock=False)
    forth, back = map(fit_link, times)
    assert forth.bytes_per_second == pytest.approx(2_000_000_000, rel=1e-3)
    assert back.bytes_per_second == pytest.approx(500_000_000, rel=1e-3)
    assert forth.latency_ns == pytest.approx(37_500, abs=20)
    assert back.latency_ns == pytest.approx(37_500, abs=20)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**12), st.one_of(st.none(), st.integers(1, 10**14))),
        min_size=2,
        max_size=4,
    )
)
def test_the_file_says_what_was_measured(costs: list[tuple[int, int | None]]) -> None:
    links = [
        (Link(source=at, destination=at + 1, latency_ns=latency, bytes_per_second=bandwidth), "")
        for at, (latency, bandwidth) in enumerate(costs)
    ]
    from schedc.units import parse_bandwidth, parse_duration_ns

    table = tomllib.loads(links_toml(links, sites=[2, 3], notes=["for people"]).decode())
    assert table["sites"] == [2, 3]
    for entry, (link, _) in zip(table["link"], links, strict=True):
        assert entry["ranks"] == [link.source, link.destination]
        assert entry["directed"] is True
        assert parse_duration_ns(entry["latency"]) == pytest.approx(link.latency_ns, rel=1e-3)
        assert ("bandwidth" in entry) == (link.bytes_per_second is not None)
        if link.bytes_per_second is not None:
            assert parse_bandwidth(entry["bandwidth"]) == pytest.approx(link.bytes_per_second, rel=1e-3)


JOB = """
[pipeline]
ranks = 2
microbatches = 4
[profile]
forward = "3 ms"
backward_input = "3 ms"
backward_weight = "3 ms"
activation = "1 MiB"
message = "256 KiB"
"""


def test_a_job_includes_the_topology(tmp_path: Path) -> None:
    links = [
        (Link(source=0, destination=1, latency_ns=80_000, bytes_per_second=2_700_000_000), "residual 1%"),
        (Link(source=1, destination=0, latency_ns=90_000), ""),
    ]
    (tmp_path / "topology.toml").write_bytes(links_toml(links, sites=[1, 1]))
    problem = read_problem(write_job(tmp_path, JOB + '[topology]\npath = "topology.toml"\n'))
    assert [(link.latency_ns, link.bytes_per_second, link.trunk) for link in problem.links] == [
        (80_000, 2_700_000_000, "site0>site1"),
        (90_000, None, "site1>site0"),
    ]


def test_three_processes_on_loopback(tmp_path: Path) -> None:
    agenda = Agenda(pairs=((0, 1), (1, 2)), sizes=(4 * KIB, 256 * KIB, MIB + 3), repeats=3, warmup=1)
    with rank_processes(3, tmp_path) as ranks:
        found, *others = ranks.run(measure, agenda)
    assert others == [(), ()]
    assert [(link.source, link.destination) for link in found] == [(0, 1), (1, 0), (1, 2), (2, 1)]
    for link in found:
        assert sorted(link.times_ns) == [8, 4 * KIB, 256 * KIB, MIB]
        assert min(link.times_ns.values()) > 0
        assert link.fit.latency_ns >= 0
        assert link.one_clock is (sys.platform == "linux")


def test_a_rank_that_ends_is_noticed_by_all(tmp_path: Path) -> None:
    agenda = Agenda(pairs=((0, 1), (1, 2)), sizes=(4 * KIB, MIB), repeats=20)
    with rank_processes(3, tmp_path) as ranks:
        first, second, third = ranks.run(measure_without, agenda, 1, 30.0, limit_s=60)
    assert second == DEAD
    assert "rank 1 has ended or failed" in first
    assert "another rank has ended or failed" in third


@pytest.mark.slow
def test_the_command_measures_a_plans_links(tmp_path: Path) -> None:
    problem = read_problem(write_job(tmp_path, JOB))
    write_plan(plan_of(problem, constructive("1f1b")(problem)), tmp_path / "plan.json")
    output = tmp_path / "topology.toml"
    options = ["-o", str(output), "--plan", str(tmp_path / "plan.json"), "--sizes", "4 KiB,1 MiB", "--repeats", "3"]
    first, second = run_on_ranks(COMMAND, options, 2, tmp_path)
    assert (first.status, second.status) == (0, 0), first.stderr
    assert second.stdout == ""
    assert "0 → 1" in first.stdout
    assert "256 KiB" in output.read_text()  # the plan's own message is among the sizes
    links = read_problem(write_job(tmp_path, JOB + '[topology]\npath = "topology.toml"\n')).links
    assert [(link.source, link.destination) for link in links] == [(0, 1), (1, 0)]
    assert min(link.latency_ns + link.occupancy_ns(MIB) for link in links) > 0


@pytest.mark.slow
def test_the_command_refuses_on_all_ranks(tmp_path: Path) -> None:
    for options, expected in [
        (["-o", str(tmp_path / "missing" / "t.toml")], "cannot be written"),
        (["-o", str(tmp_path / "plan.json"), "--plan", str(tmp_path / "plan.json")], "this command reads it"),
        (["-o", str(tmp_path / "t.toml"), "--sites", "2,2"], "expected ranks per datacenter that add up to 2"),
    ]:
        for done in run_on_ranks(COMMAND, options, 2, tmp_path):
            assert done.status == 2
            assert expected in done.stderr
            assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

from __future__ import annotations

import hashlib
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.jobs import M70, read_problem, write_job
from suite.example_counts import examples

from schedc.frontend.job import load_job
from schedc.ir.ops import BLOCKS
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from fractions import Fraction
    from pathlib import Path

    from schedc.ir.problem import Problem

MS = 1_000_000
GIB = 2**30

PLACEMENTS = ['"unidirectional"', '"loop"\nchunks = 2', '"wave"\nchunks = 3', '"bidirectional"', "[0, 1, 2, 1, 0, 2]"]


def job_text(
    placement: str = '"unidirectional"',
    *,
    ranks: int = 3,
    microbatches: int = 5,
    pipeline: str = "",
    profile: str = "",
    rest: str = "",
    forward: str = '"1 ms"',
    activation: str = '"1 GiB"',
) -> str:
    return f"""
[pipeline]
ranks = {ranks}
microbatches = {microbatches}
placement = {placement}
{pipeline}
[profile]
forward = {forward}
backward_input = "2 ms"
backward_weight = "3 ms"
activation = {activation}
message = "1 MiB"
{profile}
{rest}
"""


def read(directory: Path, text: str) -> Problem:
    problem = read_problem(write_job(directory, text))
    assert verify_problem(problem) == ()
    return problem


def test_every_section(tmp_path: Path) -> None:
    path = write_job(tmp_path, M70)
    job = load_job(path)
    problem = job.problem
    assert verify_problem(problem) == ()
    assert job.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (job.solver.method, job.solver.time_limit_ns, job.solver.gap, job.solver.seed) == ("auto", 60_000 * MS, 0.0, 0)
    assert (problem.ranks, problem.microbatches, problem.objective, problem.split_backward) == (8, 16, "makespan", True)
    assert problem.memory_limit_bytes == (8 * GIB,) * 8
    stage = problem.stages[5]
    assert (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns) == ((38 * MS,), (46_500_000,), (20_500_000,))
    assert (stage.backward_ns, stage.activation_bytes, stage.activation_after_input_bytes) == ((67 * MS,), GIB, GIB // 2)
    assert (stage.message_bytes, stage.gradient_message_bytes, stage.layers) == (64 * 2**20, 64 * 2**20, None)
    within, between, own = problem.link(0, 1), problem.link(4, 3), problem.link(2, 1)
    assert (within.latency_ns, within.bytes_per_second, within.trunk) == (10_000, 50 * 10**9, None)
    assert (between.latency_ns, between.bytes_per_second, between.trunk) == (76 * MS, 900_000_000, "site1>site0")
    assert (own.latency_ns, own.transfer_ns, own.bytes_per_second, own.trunk) == (9_500_000, 9_500_000, None, None)
    parallel = problem.data_parallel
    assert parallel is not None
    assert (parallel.size, parallel.zero_stage, parallel.trunk) == (4, 1, None)
    assert (parallel.reduce_scatter_ns, parallel.all_gather_ns) == ((120 * MS,) * 8, (60 * MS,) * 8)


def test_sharded_weights(tmp_path: Path) -> None:
    """Of 2.5 GB three quarters come from the other replicas, in 18,750,000 ns at 100 GB/s, and a latency; of odd bytes a part."""
    text = (
        '[pipeline]\nranks = 2\nmicrobatches = 2\n[profile]\nforward = "1 ms"\nbackward_input = "1 ms"\nbackward_weight = "1 ms"\n'
        '[data_parallel]\nsize = 4\nzero_stage = 3\ngathered = "2500 MB"\ngradients = ["1 B", "5 B"]\nbandwidth = "100 GB/s"\n'
    )
    parallel = load_job(write_job(tmp_path, text + 'latency = "10 us"\n')).problem.data_parallel
    assert parallel is not None
    assert (parallel.gathered_bytes, parallel.gradient_bytes) == ((2_500_000_000,) * 2, (1, 5))
    assert (parallel.all_gather_ns, parallel.reduce_scatter_ns) == ((18_760_000,) * 2, (10_001, 10_001))
    own = text.replace('bandwidth = "100 GB/s"', 'all_gather = "3 ms"\nreduce_scatter = ["1 ms", "2 ms"]')
    parallel = load_job(write_job(tmp_path, own)).problem.data_parallel
    assert parallel is not None and (parallel.all_gather_ns, parallel.reduce_scatter_ns) == ((3 * MS,) * 2, (MS, 2 * MS))


def test_defaults(tmp_path: Path) -> None:
    text = '[pipeline]\nranks = 2\nmicrobatches = 1\n[profile]\nforward = "1 s"\nbackward_input = "0 s"\nbackward_weight = "1 us"\n'
    job = load_job(write_job(tmp_path, text))
    problem = job.problem
    assert verify_problem(problem) == ()
    assert (problem.placement, problem.objective, problem.memory_limit_bytes, problem.data_parallel) == (
        "unidirectional",
        "makespan",
        (None, None),
        None,
    )
    assert problem.stages[0].activation_bytes == 0
    assert [(link.latency_ns, link.occupancy_ns(10**9)) for link in problem.links] == [(0, 0), (0, 0)]
    assert (job.solver.method, job.solver.time_limit_ns) == ("auto", None)


def test_name(tmp_path: Path) -> None:
    directory = tmp_path / "big model"
    directory.mkdir()
    assert read_problem(write_job(directory, job_text())).name == "big model"
    assert read_problem(write_job(directory, job_text(), "small.toml")).name == "small"
    assert read_problem(write_job(directory, 'name = "given"\n' + job_text())).name == "given"


def test_name_of_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "here"
    directory.mkdir()
    write_job(directory, job_text())
    monkeypatch.chdir(directory)
    assert read_problem("job.toml").name == "here"


@pytest.mark.parametrize(
    ("placement", "rank_of_stage", "paths"),
    [
        (PLACEMENTS[0], (0, 1, 2), ((0, 1, 2),)),
        (PLACEMENTS[1], (0, 1, 2, 0, 1, 2), (tuple(range(6)),)),
        (PLACEMENTS[2], (0, 1, 2, 2, 1, 0, 0, 1, 2), (tuple(range(9)),)),
        (PLACEMENTS[3], (0, 1, 2, 2, 1, 0), ((0, 1, 2), (3, 4, 5))),
        (PLACEMENTS[4], (0, 1, 2, 1, 0, 2), (tuple(range(6)),)),
    ],
)
def test_placement(tmp_path: Path, placement: str, rank_of_stage: tuple[int, ...], paths: tuple[tuple[int, ...], ...]) -> None:
    problem = read(tmp_path, job_text(placement))
    assert tuple(stage.rank for stage in problem.stages) == rank_of_stage
    assert problem.paths == paths
    assert problem.path_of == tuple(m % len(paths) for m in range(5))
    crossed = {
        way
        for path in paths
        for a, b in pairwise(path)
        if rank_of_stage[a] != rank_of_stage[b]
        for way in ((rank_of_stage[a], rank_of_stage[b]), (rank_of_stage[b], rank_of_stage[a]))
    }
    assert [(link.source, link.destination) for link in problem.links] == sorted(crossed)


def test_chunks_of_a_list(tmp_path: Path) -> None:
    problem = read(tmp_path, job_text("[0, 1, 2, 2, 0, 1]\nchunks = 2"))
    assert (problem.placement, problem.stages_on(2)) == ("explicit", (2, 3))


def test_one_rank_has_no_links(tmp_path: Path) -> None:
    assert read(tmp_path, job_text(ranks=1)).links == ()


def test_values_of_each_stage(tmp_path: Path) -> None:
    problem = read(tmp_path, job_text('"wave"\nchunks = 2', forward='["1 ms", "2 ms", "3 ms", "4 ms", "5 ms", "6 ms"]'))
    assert [stage.forward_ns for stage in problem.stages] == [(n * MS,) for n in range(1, 7)]


def test_values_of_a_bidirectional_pipeline(tmp_path: Path) -> None:
    three = read(tmp_path, job_text('"bidirectional"', forward='["1 ms", "2 ms", "3 ms"]'))
    six = read(tmp_path, job_text('"bidirectional"', forward='["1 ms", "2 ms", "3 ms", "1 ms", "2 ms", "3 ms"]'))
    assert three == six
    assert [stage.forward_ns[0] // MS for stage in three.stages] == [1, 2, 3, 1, 2, 3]
    assert [stage.layers for stage in three.stages] == [(0, 1), (1, 2), (2, 3)] * 2


def test_partition_names_the_layers(tmp_path: Path) -> None:
    one_way = read(tmp_path, job_text(pipeline="partition = [4, 2, 3]"))
    assert [stage.layers for stage in one_way.stages] == [(0, 4), (4, 6), (6, 9)]
    two_ways = read(tmp_path, job_text('"bidirectional"', pipeline="partition = [4, 2, 3]"))
    assert [stage.layers for stage in two_ways.stages] == [(0, 4), (4, 6), (6, 9)] * 2


def test_fused_backward(tmp_path: Path) -> None:
    assert read(tmp_path, job_text()).stages[0].backward_ns == (5 * MS,)
    assert read(tmp_path, job_text(profile='backward = "4.5 ms"')).stages[0].backward_ns == (4_500_000,)
    split = job_text(profile='backward = "4.5 ms"', pipeline="split_backward = false")
    fused = split.replace('backward_input = "2 ms"\nbackward_weight = "3 ms"\n', "")
    problem = read(tmp_path, fused)
    stage = problem.stages[0]
    assert not problem.split_backward
    assert (stage.backward_input_ns, stage.backward_weight_ns, stage.backward_ns) == ((4_500_000,), (0,), (4_500_000,))


def test_gradient_message(tmp_path: Path) -> None:
    problem = read(tmp_path, job_text(profile='gradient_message = ["3 B", "5 B", "7 B"]'))
    assert [stage.gradient_message_bytes for stage in problem.stages] == [3, 5, 7]
    assert [stage.message_bytes for stage in problem.stages] == [2**20] * 3


class TestMemory:
    def test_limit_of_each_rank(self, tmp_path: Path) -> None:
        problem = read(tmp_path, job_text(rest='[memory]\nlimit = ["1 GiB", "2 GiB", "3 GiB"]'))
        assert problem.memory_limit_bytes == (GIB, 2 * GIB, 3 * GIB)

    def test_below_one_activation_is_for_the_solvers(self, tmp_path: Path) -> None:
        assert read(tmp_path, job_text(rest='[memory]\nlimit = "1 MiB"')).memory_limit_bytes == (2**20,) * 3

    def test_in_flight_counts_all_chunks(self, tmp_path: Path) -> None:
        activation = '["1 B", "2 B", "4 B", "8 B", "16 B", "32 B"]'
        problem = read(tmp_path, job_text('"wave"\nchunks = 2', activation=activation, rest="[memory]\nin_flight = [1, 2, 3]"))
        assert problem.memory_limit_bytes == (33, 36, 36)

    def test_in_flight_takes_the_larger_path(self, tmp_path: Path) -> None:
        activation = '["1 B", "2 B", "4 B"]'
        problem = read(tmp_path, job_text('"bidirectional"', activation=activation, rest="[memory]\nin_flight = 2"))
        assert problem.memory_limit_bytes == (8, 4, 8)

    def test_capacity_less_static(self, tmp_path: Path) -> None:
        rest = '[memory]\ncapacity = ["10 GiB", "11 GiB", "12 GiB"]\nstatic = "2 GiB"'
        assert read(tmp_path, job_text(rest=rest)).memory_limit_bytes == (8 * GIB, 9 * GIB, 10 * GIB)
        assert read(tmp_path, job_text('"loop"\nchunks = 2', rest=rest)).memory_limit_bytes == (6 * GIB, 7 * GIB, 8 * GIB)


def test_data_parallel_on_a_trunk(tmp_path: Path) -> None:
    rest = """
[topology]
sites = [1, 2]
between = {latency = "1 ms"}
[data_parallel]
size = 2
zero_stage = 0
reduce_scatter = ["1 ms", "2 ms", "3 ms"]
trunk = [1, 0]
"""
    parallel = read(tmp_path, job_text(rest=rest)).data_parallel
    assert parallel is not None
    assert (parallel.trunk, parallel.reduce_scatter_ns, parallel.all_gather_ns) == ("site1>site0", (MS, 2 * MS, 3 * MS), ())


@given(
    scale=st.integers(1, 1000),
    placement=st.sampled_from(PLACEMENTS),
    milliseconds=st.tuples(*[st.fractions(0, 1000, max_denominator=1000)] * 4),
)
@examples(60)
def test_times_scale(
    tmp_path_factory: pytest.TempPathFactory, scale: int, placement: str, milliseconds: tuple[Fraction, ...]
) -> None:
    """The unit in which a job is written makes no difference, and all durations grow with it alike."""
    directory = tmp_path_factory.mktemp("job")

    def problem(factor: int, unit: str, per_ms: int) -> Problem:
        texts = [f'"{round(value * 1000) * factor * per_ms // 1000} {unit}"' for value in milliseconds]
        text = job_text(placement, forward=texts[0], rest=f"[topology]\nwithin = {{latency = {texts[3]}}}")
        return read(directory, text.replace('"2 ms"', texts[1]).replace('"3 ms"', texts[2]))

    base = problem(1, "us", 1000)
    assert problem(1, "ns", MS) == base
    scaled = problem(scale, "us", 1000)
    for stage, larger in zip(base.stages, scaled.stages, strict=True):
        for kind in BLOCKS:
            assert larger.durations_ns(kind) == tuple(scale * value for value in stage.durations_ns(kind))
    assert [link.latency_ns for link in scaled.links] == [scale * link.latency_ns for link in base.links]


def test_reading_a_job_needs_no_heavy_library() -> None:
    heavy = {"numpy", "numba", "ortools", "torch", "pulp", "highspy", "rich", "typer"}
    program = f"import sys, schedc.frontend.job, schedc.units; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)

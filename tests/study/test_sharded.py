"""ZeRO 2 and 3: what replicas divide, what is gathered beside the blocks, and all degrees that a small cluster has."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import CONFIG, EXPERTS, tiny_request

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.compile.driver import compile_job
from schedc.frontend.job import checked_job, load_job
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.estimates import no_room, simple_bound_ns
from schedc.study.tune.folder import job_table, write_folder
from schedc.study.tune.layer_costs import PROFILE
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import bytes_per_parameter, collectives_ns, costs_of, optimizer_ns
from schedc.study.tune.request import read_request
from schedc.study.tune.search import tune
from schedc.study.tune.sums import state_bytes
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest

FUSED: dict[str, object] = {"recompute": ["none"], "split_backward": False}
LEVELS = {"zero_stages": [1, 2, 3], "microbatch_sizes": [1], "recompute": ["none"], "placements": ["unidirectional"]}


def by_stage(request: TuneRequest) -> dict[int, TuneCandidate]:
    """The one candidate of each ZeRO stage."""
    found = {each.zero_stage: each for each in candidates(request.choices)}
    assert len(found) == len(candidates(request.choices)) == 3
    return found


def test_replicas_divide_more_with_each_stage(tmp_path: Path) -> None:
    """Four replicas; 2, 4 and 12 bytes of weight, gradient and optimizer."""
    request = tiny_request(tmp_path, sites=(4,), tune=LEVELS | {"ranks": [1]})
    of = by_stage(request)
    assert {stage: bytes_per_parameter(request, each)[0] for stage, each in of.items()} == {1: 6 + 3, 2: 2 + 4, 3: 18 / 4}
    made = {stage: candidate_problem(request, each) for stage, each in of.items()}
    layers = costs_of(request, of[1]).layers
    parameters, largest = sum(layer.parameters for layer in layers), max(layer.parameters for layer in layers)
    gathered = {1: 0, 2: 2 * 4 * largest, 3: 2 * (4 + 2) * largest}
    for stage, each in of.items():
        besides = made[stage].besides[0]
        assert besides.buffers_bytes == gathered[stage]
        assert sum(made[stage].static_bytes) == pytest.approx(
            bytes_per_parameter(request, each)[0] * parameters + besides.total_bytes
        )
        held = state_bytes(request, each)
        assert held is not None and held == pytest.approx(4 * bytes_per_parameter(request, each)[0] * parameters, rel=1e-6)


def test_a_block_takes_no_less_than_what_comes_and_goes_beside_it(tmp_path: Path) -> None:
    """A network of 1 GB/s, so that gathering a block's weights takes longer than computing it."""
    request = tiny_request(tmp_path, sites=(4,), tune=LEVELS | {"ranks": [1]}, topology={"within": {"bandwidth": "1 GB/s"}})
    of = by_stage(request)
    whole, reduced, gathered = (costs_of(request, of[stage]).layers for stage in (1, 2, 3))
    for plain, second, third in zip(whole, reduced, gathered, strict=True):
        ring_ns = 3 / 4 * plain.parameters / 1e9 * 1e9
        gather_ns, reduce_ns = 2 * ring_ns + 20_000, 4 * ring_ns + 20_000
        assert second.forward_ns == plain.forward_ns and second.backward_input_ns == plain.backward_input_ns
        assert second.backward_weight_ns[0] == pytest.approx(max(plain.backward_weight_ns[0], reduce_ns), abs=2)
        assert third.forward_ns[0] == pytest.approx(max(plain.forward_ns[0], gather_ns), abs=2)
        assert third.backward_input_ns[0] == pytest.approx(max(plain.backward_input_ns[0], gather_ns), abs=2)
        assert third.backward_ns[0] == pytest.approx(max(plain.backward_ns[0], gather_ns + reduce_ns), abs=2)
        assert third.backward_ns[0] <= third.backward_input_ns[0] + third.backward_weight_ns[0]
    # At the ends of a step the first layer's are left, and the weights of all before the first forward with ZeRO 2.
    embedding, parameters = whole[0].parameters, sum(layer.parameters for layer in whole)
    for stage, gathered_parameters in ((2, parameters), (3, embedding)):
        parallel = candidate_problem(request, of[stage]).problem.data_parallel
        assert parallel is not None
        reduce_ns = collectives_ns(request, of[1], embedding, 0)[0]
        assert parallel.reduce_scatter_ns == (reduce_ns + optimizer_ns(request, of[stage], parameters, 0),)
        assert parallel.all_gather_ns == (collectives_ns(request, of[1], gathered_parameters, 0)[1],)
    assert optimizer_ns(request, of[2], 10**9, 0) < optimizer_ns(request, of[1], 10**9, 0)


@pytest.mark.parametrize("config", [None, EXPERTS])
def test_first_bounds_hold_and_jobs_are_those_planned(config: dict[str, object] | None, tmp_path: Path) -> None:
    more = {} if config is None else {"config": config, "model": {"tp": [1, 2], "ep": 2, "etp": 1}}
    sections = {"zero_stages": [1, 2, 3], "microbatch_sizes": [1], "recompute": ["none", "selective", "full"]}
    slow = {"within": {"bandwidth": "20 GB/s", "latency": "3 us"}}
    request = tiny_request(tmp_path, sites=(4,), tune=sections | {"batch": 4}, topology=slow, **more)  # type: ignore[arg-type]
    for each in candidates(request.choices):
        made, totals = candidate_problem(request, each), costs_of(request, each).totals
        assert not no_room(request, each, totals) and not list(verify_problem(made.problem))
        assert 0 < simple_bound_ns(request, each, totals) <= max(bound.value_ns for bound in lower_bounds(made.problem))
        (tmp_path / PROFILE).write_text(costs_of(request, each).profile, encoding="utf-8")
        job = checked_job(source_of_table(job_table(request, each, made), directory=tmp_path, name="other"))
        assert (job.workload, job.layout, job.problem) == (made.workload, made.layout, made.problem)


def test_a_plan_gathers_stages_where_that_is_faster(tmp_path: Path) -> None:
    """Over a slow network blocks are as long as their gathers; a plan gathers seldom. What it says, `compile` finds again."""
    keys: dict[str, object] = {"ranks": [2], "microbatch_sizes": [1], "zero_stages": [3], "recompute": ["none"], "batch": 32}
    request = tiny_request(tmp_path, tune=keys | {"placements": ["loop"]}, topology={"within": {"bandwidth": "1 GB/s"}})
    blocks, plan = sorted(candidates(request.choices), key=lambda each: each.gathers or "")
    assert (blocks.gathers, plan.gathers, plan.title) == ("blocks", "plan", blocks.title.replace("ZeRO 3", "ZeRO 3 by plan"))
    made = candidate_problem(request, plan)
    parameters = [sum(layer.parameters for layer in made.workload.layers[slice(*own)]) for own in made.layout.layers_of_stage]
    parallel = made.problem.data_parallel
    assert parallel is not None and made.problem.is_sharded and not candidate_problem(request, blocks).problem.is_sharded
    assert parallel.gathered_bytes == tuple(2 * own for own in parameters)
    assert parallel.gradient_bytes == tuple(4 * own for own in parameters)
    assert sum(made.static_bytes) == pytest.approx(9 * sum(parameters) + sum(held.total_bytes for held in made.besides), abs=8)
    found = tune(request, SearchSettings(method="greedy{n_sub=1}"), candidate_s=0.0, prune=False)
    steps = {row.candidate: row.step_ns for row in found.rows}
    assert found.best.candidate == plan and (steps[blocks] or 0) > 2 * (steps[plan] or 0) > 0
    gathers = [each for rank in found.plan.ranks for each in rank.collectives]
    assert len(gathers) >= 8, "of four stages a gather and a reduction each, at least"
    write_folder(tmp_path, request, found)
    again = compile_job(load_job(tmp_path / "job.toml"), SearchSettings(method="greedy{n_sub=1}"))
    assert again.plan.certificate.makespan_ns == found.best.step_ns


def test_activations_hold_memory_until_their_backward_and_so_bound_the_step(tmp_path: Path) -> None:
    """Where a rank has room for little more than one microbatch, that is the largest of the first bounds; plans are above it."""
    binding = 0
    nothing: dict[str, object] = {"weight": "0 B", "gradient": "0 B", "optimizer": "0 B", "reserve": "0 B"}
    tune_keys: dict[str, object] = {
        "ranks": [4],
        "microbatch_sizes": [1],
        "recompute": ["none"],
        "batch": 16,
        "placements": ["unidirectional"],
    }
    for capacity in (114, 130, 200):
        request = tiny_request(tmp_path, sites=(4,), tune=tune_keys, memory=nothing | {"capacity": f"{capacity} MB"})
        found = tune(request, SearchSettings(method="greedy{n_sub=1}"), prune=False)
        for row in found.rows:
            totals = costs_of(request, row.candidate).totals
            layers = request.sites[0].costs(row.candidate.degrees, 1, False, True).layers
            times = [layer.forward_ns[0] + min(layer.backward_input_ns[0], layer.backward_ns[0]) for layer in layers]
            held = sum(layer.activation_bytes * sum(times[at:]) for at, layer in enumerate(layers))
            assert totals.held_byte_ns == held
            first_ns = simple_bound_ns(request, row.candidate, totals)
            binding += first_ns > max(totals.path_ns(row.candidate), 16 * totals.work_ns(row.candidate) // 4)
            assert row.step_ns is None or row.step_ns >= first_ns
    assert binding


def test_all_degrees_that_fill_the_devices_are_tried(tmp_path: Path) -> None:
    """Counted by trying all tuples of numbers: Megatron-LM's conditions, and what the model's dimensions can be divided by."""
    job = {"batch": 8, "microbatch_sizes": [1, 2], "zero_stages": [1], "placements": ["unidirectional"]} | FUSED
    open_degrees: dict[str, object] = {"tp": [1, 2, 4, 8], "ep": [1, 2, 4, 8], "cp": [1, 2], "etp": [1, 2, 4, 8]}
    request = tiny_request(tmp_path, sites=(8,), config=EXPERTS, model=open_degrees, tune=job)
    found = [
        (each.ranks, each.data_parallel, *each.degrees.columns.values(), each.microbatch_size)
        for each in candidates(request.choices)
    ]
    expected = set()
    numbers = range(1, 9)
    for ranks, pipelines, tp, cp in product(numbers, numbers, (1, 2, 4, 8), (1, 2)):
        if ranks * pipelines * tp * cp != 8 or 8 % pipelines:
            continue
        for ep, etp, size in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2)):
            if pipelines * tp * cp % (ep * etp) == 0 and 8 // pipelines % size == 0:
                expected.add((ranks, pipelines, tp, cp, ep, etp, size))
    assert len(found) == len(set(found)) and set(found) == expected


def test_without_a_word_of_degrees_powers_of_two_are_tried(tmp_path: Path) -> None:
    """Of a Llama of 8 heads on two nodes of 8: tp up to a node; cp where each device keeps 4,096 tokens; no experts."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    table = {
        "model": {"config": "config.json", "device": "h100", "sequence": 4096},
        "tune": {"batch": 16},
        "topology": {"sites": [16]},
    }
    opened = read_request(source_of_table(table, directory=tmp_path, name="open"))
    assert {each.degrees.tensor for each in candidates(opened.choices)} == {1, 2, 4, 8}
    assert {each.degrees.context for each in candidates(opened.choices)} == {1}
    assert {each.degrees.expert for each in candidates(opened.choices)} == {1}
    assert {each.zero_stage for each in candidates(opened.choices) if each.ranks == 1} == {1, 2, 3}
    assert {each.recompute for each in candidates(opened.choices)} == {"none", "selective", "full"}


def test_where_no_pipeline_is_fastest_the_verdict_says_by_how_much(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, sites=(4,), tune={"ranks": [1, 4], "microbatch_sizes": [4], "batch": 64})
    found = tune(request, SearchSettings(limits=Limits(time_s=None)), candidate_s=0.0)
    assert found.best.candidate.ranks == 1 and found.best.step_ns is not None
    piped = min(row.step_ns for row in found.rows if row.candidate.ranks == 4 and row.step_ns is not None)
    assert found.pipelines.startswith(
        f"do not pipeline: with a pipeline it takes {piped / found.best.step_ns - 1:.1%} more (4 ranks"
    )
    only = tiny_request(tmp_path, sites=(4,), tune={"ranks": [4], "microbatch_sizes": [1], "batch": 4})
    assert tune(only, SearchSettings(), candidate_s=0.0).pipelines == ""
    small = tiny_request(tmp_path, sites=(4,), tune={"microbatch_sizes": [1], "batch": 4}, memory={"capacity": "800 MB"})
    told = tune(small, SearchSettings(), candidate_s=0.0).pipelines
    assert told.startswith("pipeline: without one there is no room (a rank needs ")

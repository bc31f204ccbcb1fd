"""Which devices have the same weights: optimizer state, collectives and candidates with context and expert parallelism."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import CONFIG, EXPERTS, tiny_request

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.costs.architecture import further_token_parameters, parameters
from schedc.costs.layers import known_models
from schedc.errors import InvalidInput
from schedc.frontend.job import checked_job
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.degrees import Degrees
from schedc.study.tune.estimates import no_room, simple_bound_ns
from schedc.study.tune.first_plans import baseline_of
from schedc.study.tune.folder import job_table
from schedc.study.tune.layer_costs import PROFILE
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import bytes_per_parameter, collectives_ns, costs_of, optimizer_ns
from schedc.study.tune.search import tune
from schedc.view.terminal.studies import held_by_ranks

if TYPE_CHECKING:
    from pathlib import Path

SMALL_V3 = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "n_routed_experts": 16,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 2048,
    "first_k_dense_replace": 1,
}
ALONE = {"ranks": [1], "microbatch_sizes": [1], "recompute": ["none"], "placements": ["unidirectional"], "split_backward": False}


def test_devices_that_share_a_sequence_have_the_same_weights(tmp_path: Path) -> None:
    """One pipeline of 8 devices that share sequences: ZeRO 1 divides by 8, and gradients are reduced among 8."""
    request = tiny_request(tmp_path, sites=(8,), model={"cp": 8}, tune=ALONE)
    (each,) = candidates(request.choices)
    assert (each.data_parallel, each.zero_stage) == (1, 1)
    assert bytes_per_parameter(request, each)[0] == 6 + 12 / 8
    reduce_ns, gather_ns = collectives_ns(request, each, 10**8, 0)
    # Eight devices of one node: their links, not the network; 20 us to begin.
    assert reduce_ns == pytest.approx(20_000 + 7 / 8 * 4e8 / (0.75 * 450), abs=2)
    assert gather_ns == pytest.approx(20_000 + 7 / 8 * 2e8 / (0.75 * 450), abs=2)
    parallel = candidate_problem(request, each).problem.data_parallel
    assert parallel is not None and parallel.size == 8


def test_experts_lie_over_the_devices_of_a_stage(tmp_path: Path) -> None:
    """Megatron-LM's condition: data × context × tensor parallel devices are filled by groups of ep × etp."""
    of = partial(tiny_request, tmp_path, sites=(8,), config=EXPERTS, tune=ALONE)
    request = of(model={"tp": 2, "ep": 8, "etp": 1})
    (each,) = candidates(request.choices)
    assert each.data_parallel == 4
    assert bytes_per_parameter(request, each) == (6 + 12 / 4, 6 + 12)
    assert not candidates(of(model={"tp": 2, "ep": 8, "etp": 2}).choices), "of 4 pipelines, over tensor groups"
    searched = {each.degrees.expert_tensor for each in candidates(of(model={"tp": 2, "ep": [2, 4, 8]}).choices)}
    assert searched == {1, 2}, "experts over tensor groups, or within data parallelism"
    degrees = Degrees(tensor=2, context=2, expert=4, expert_tensor=1)
    assert (degrees.replicas(6), degrees.expert_replicas(6)) == (12, 6)
    assert degrees.divides_experts(1) and not Degrees(expert=4).divides_experts(6)


@pytest.mark.parametrize(
    ("ranks", "model", "rate"),
    [
        (1, {"cp": 8}, 450),  # a node
        (2, {"cp": 8}, 450),
        (1, {"cp": 16}, 400),  # eight adapters of each of two nodes
        (1, {"cp": 24}, 400),
        (1, {"tp": 2, "cp": 12}, 200),  # four of each of three nodes
        (1, {"tp": 8, "cp": 4}, 50),  # one device of each of four nodes
        (4, {"tp": 2, "cp": 3}, 50),  # six devices, some of which are in two nodes
    ],
)
def test_a_ring_over_nodes_has_the_network_of_its_devices_in_a_node(
    ranks: int, model: dict[str, int], rate: float, tmp_path: Path
) -> None:
    """One pipeline on H100: links of 450 GB/s, an adapter of 50 GB/s for each device, of both 0.75; 20 us to begin."""
    context = model["cp"]
    sites = (ranks * context * model.get("tp", 1),)
    degrees: dict[str, object] = {**model, "sequence": 48 * 64}
    request = tiny_request(tmp_path, sites=sites, model=degrees, tune=ALONE | {"batch": 1, "zero_stages": [1], "ranks": [ranks]})
    (each,) = candidates(request.choices)
    reduce_ns, _ = collectives_ns(request, each, 10**8, 0)
    assert reduce_ns == pytest.approx(20_000 + (context - 1) / context * 4e8 / (0.75 * rate), abs=3)


def test_zero_1_is_tried_where_experts_alone_have_replicas(tmp_path: Path) -> None:
    """One pipeline, whose two tensor-parallel devices have the same experts: their optimizer state is divided by 2."""
    tune = ALONE | {"ranks": [4], "zero_stages": [0, 1]}
    request = tiny_request(tmp_path, sites=(8,), config=EXPERTS, model={"tp": 2, "ep": 1, "etp": 1}, tune=tune)
    held = {each.zero_stage: bytes_per_parameter(request, each) for each in candidates(request.choices)}
    assert held == {0: (18, 18), 1: (18, 6 + 12 / 2)}
    whole, divided = (candidate_problem(request, each) for each in candidates(request.choices))
    assert all(less < more for less, more in zip(divided.static_bytes, whole.static_bytes, strict=True))
    assert divided.problem.data_parallel is not None and any(divided.problem.data_parallel.all_gather_ns)


def test_the_step_ends_with_the_optimizers(tmp_path: Path) -> None:
    """Passes of a device over its memory, at 0.8 of 3.35 TB/s, for each parameter; of its own states with ZeRO 1."""
    request = tiny_request(tmp_path, sites=(4,), tune=ALONE | {"zero_stages": [0, 1]})
    for each in candidates(request.choices):
        own = 4 * 4 + 2 * 12 + 4 + 2  # gradients: the norm, clipped, Adam; states there and back; the weight
        taken_s = 10**9 * (3 * 4 + own / (4 if each.zero_stage else 1)) / (0.8 * 3.35e12)
        assert optimizer_ns(request, each, 10**9, 0) == pytest.approx(taken_s * 1e9, abs=1)
        made = candidate_problem(request, each)
        parallel, parameters = made.problem.data_parallel, made.problem.stages[0].parameters
        assert parallel is not None
        reduced_ns = collectives_ns(request, each, parameters, 0)[0]
        assert parallel.reduce_scatter_ns == (reduced_ns + optimizer_ns(request, each, parameters, 0),)
    measured = tiny_request(tmp_path, sites=(1,), model={"efficiency": 0.5}, tune=ALONE)
    (each,) = candidates(measured.choices)
    assert candidate_problem(measured, each).problem.data_parallel is None, "nothing but FLOPs takes time"


@pytest.mark.parametrize(("tied", "second"), [(False, 5), (True, 6)])
def test_a_second_embedding_is_on_another_rank_only(tmp_path: Path, tied: bool, second: int) -> None:
    """That of the module for further tokens, or of a tied head: a copy, whose gradient is summed; none beside the embedding."""
    config = {**known_models()["deepseek-v3-671b"]["config"], **SMALL_V3, "tie_word_embeddings": tied}
    held, matrix = {}, 2048 * 256
    for ranks in (1, 2):
        tune = ALONE | {"ranks": [ranks], "zero_stages": [0], "split_backward": False}
        request = tiny_request(tmp_path, sites=(ranks,), config=config, tune=tune)
        (each,) = candidates(request.choices)
        made = candidate_problem(request, each, [7] if ranks == 1 else [3, 4])
        held[ranks] = sum(made.static_bytes) - sum(besides.total_bytes for besides in made.besides)
        assert [tie.layers for tie in made.workload.ties] == [(0, second)]
        assert made.workload.ties[0].gradient_bytes == 4 * matrix
        own = [sum(layer.parameters for layer in made.workload.layers[first:last]) for first, last in made.layout.layers_of_stage]
        assert request.architecture is not None
        assert sum(own) == parameters(request.architecture) + further_token_parameters(request.architecture) + matrix
    assert held[2] - held[1] == 18 * matrix


def test_tune_takes_a_table_that_was_measured(tmp_path: Path) -> None:
    """For the layers, the collectives of gradients, and the optimizer's passes over the memory."""
    keys = {"format": "schedc.operators", "version": 1, "device": "h100", "constants": {"memory": 0.4, "link": 0.5, "matrix": 0.1}}
    (tmp_path / "table.json").write_text(json.dumps(keys))
    plain = tiny_request(tmp_path, tune=ALONE)
    measured = tiny_request(tmp_path, tune=ALONE, model={"table": "table.json"})
    assert tmp_path / "table.json" in measured.files
    assert (measured.sites[0].rates.memory, measured.sites[0].rates.link) == (0.4, 0.5)
    assert measured.sites[0].optimizer.own == pytest.approx(2 * plain.sites[0].optimizer.own)
    slow, fast = (request.sites[0].costs(request.choices.degrees[0], 1, False, True).totals for request in (measured, plain))
    assert slow.forward_ns > 3 * fast.forward_ns
    for key, value in (("efficiency", 0.5), ("device", "a100")):
        with pytest.raises(InvalidInput):
            tiny_request(tmp_path, tune=ALONE, model={"table": "table.json", key: value})


def test_gradients_take_what_collectives_of_the_table_took(tmp_path: Path) -> None:
    """Of as many neighbours; tensor parallelism puts replicas apart, and other sizes of a group were not measured."""
    rows = [["reduce-scatter", 4, 3e6, 1e-3], ["reduce-scatter", 4, 6e6, 3e-3], ["all-gather", 4, 1.5e6, 7e-3]]
    keys = {"format": "schedc.operators", "version": 1, "device": "h100", "collectives": rows}
    (tmp_path / "table.json").write_text(json.dumps(keys))
    keyed: dict[str, object] = {"table": "table.json"}
    measured = tiny_request(tmp_path, tune=ALONE, model=keyed)
    (each,) = candidates(measured.choices)
    assert collectives_ns(measured, each, 1_500_000, 0) == (2_000_000, 10_500_000)  # 4.5 MB of 6 MB, and 2.25 of 3 MB
    for tensor_parallel in (2, 1):
        plain, measured = (
            tiny_request(tmp_path, sites=(8,), tune=ALONE, model={"tp": tensor_parallel, **more}) for more in ({}, keyed)
        )
        (each,) = candidates(measured.choices)
        assert collectives_ns(measured, each, 1_500_000, 0) == collectives_ns(plain, each, 1_500_000, 0)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_bound_is_below_plans_with_collectives_as_they_are_measured(seed: int, tmp_path: Path) -> None:
    """Times that scatter do not bend upwards: two stages' collectives may take less than that of both together."""
    rng = random.Random(seed)
    rate, least_s = rng.choice((1e8, 1e9)), rng.choice((1e-5, 1e-3))
    rows = [
        [kind, 4, 2**power, (least_s + 2**power / rate) * rng.uniform(0.8, 1.25)]
        for kind in ("reduce-scatter", "all-gather")
        for power in range(rng.randint(14, 22), 28, rng.randint(1, 3))
    ]
    keys = {"format": "schedc.operators", "version": 1, "device": "h100", "collectives": rows}
    (tmp_path / "table.json").write_text(json.dumps(keys))
    config, more = (EXPERTS, {"ep": 2}) if seed % 2 else (CONFIG, {})
    keyed = {"ranks": [2], "microbatch_sizes": [1], "recompute": ["none"], "zero_stages": [0, 1, 2, 3]}
    request = tiny_request(tmp_path, sites=(8,), config=config, model={"table": "table.json", **more}, tune=keyed)
    for each in candidates(request.choices):
        plan = baseline_of(candidate_problem(request, each).problem, SearchSettings(), [])
        assert 0 < simple_bound_ns(request, each, costs_of(request, each).totals) <= plan.certificate.makespan_ns


def test_a_stage_holds_what_its_backward_works_with_once_for_a_rank(tmp_path: Path) -> None:
    request = tiny_request(
        tmp_path, sites=(2,), tune=ALONE | {"ranks": [2], "placements": ["loop"]}, model={"framework": "megatron-te"}
    )
    (each,) = candidates(request.choices)
    made = candidate_problem(request, each)
    own, _ = bytes_per_parameter(request, each)
    for rank, held in enumerate(made.besides):
        stages = [stage for stage in made.problem.stages if stage.rank == rank]
        states = sum(own * stage.parameters for stage in stages)
        assert made.static_bytes[rank] == pytest.approx(states + held.total_bytes, abs=8)
        assert held.working_bytes > 0 and held.moment.startswith("backward of ")
        # Four shapes of 1,024 x 4,096 and the like, once.
        assert held.buffers_bytes == 2 * (1024 * 3072 + 1024 * 1024 + 1024 * 8192 + 4096 * 1024)


def test_of_equal_steps_that_which_holds_less_is_the_best(tmp_path: Path) -> None:
    """On one rank all orders take as long; GPipe's holds all microbatches, 1F1B's one."""
    request = tiny_request(tmp_path, sites=(1,), tune=ALONE)
    found = tune(request, SearchSettings(), candidate_s=0.0)
    (activations,) = found.plan.certificate.peak_activation_bytes
    assert activations == found.problem.problem.stages[0].activation_bytes
    (held,) = held_by_ranks(found)
    assert held.bytes == found.best.peak_bytes
    assert held.states == 18 * sum(layer.parameters for layer in costs_of(request, found.best.candidate).layers)
    assert (held.activations, held.moment) == (activations, found.problem.besides[0].moment)
    assert held.besides == held.bytes - held.states - activations > 0


TIED = CONFIG | {"tie_word_embeddings": True, "vocab_size": 8192}


def test_a_matrix_that_embedding_and_head_share_is_held_once_where_a_rank_has_both(tmp_path: Path) -> None:
    """On one rank, and in a wave, whose first rank has both ends; on two, each has it, and they send each other its gradient."""
    sections = {"ranks": [1, 2], "placements": ["unidirectional", "wave"], "zero_stages": [0]}
    made, others = (
        {each.title: (each, candidate_problem(request, each), request) for each in candidates(request.choices)}
        for request in (
            tiny_request(tmp_path, sites=(2,), config=config, tune=ALONE | sections)
            for config in (TIED, TIED | {"tie_word_embeddings": False})
        )
    )
    matrix = 8192 * 1024
    assert len(made) == 3
    for title, (each, problem, request) in made.items():
        is_apart = each.ranks == 2 and each.placement == "unidirectional"
        assert sum(others[title][1].static_bytes) - sum(problem.static_bytes) == (0 if is_apart else 18 * matrix)
        assert [tie.gradient_bytes for tie in problem.workload.ties] == [4 * matrix]
        assert problem.problem.data_parallel is not None and others[title][1].problem.data_parallel is not None
        sums = [sum(of.problem.data_parallel.reduce_scatter_ns) for of in (problem, others[title][1]) if of.problem.data_parallel]
        assert (sums[0] > sums[1]) is is_apart, "the exchange; else less to reduce and to update"
        totals = costs_of(request, each).totals
        assert not no_room(request, each, totals)
        assert simple_bound_ns(request, each, totals) <= max(bound.value_ns for bound in lower_bounds(problem.problem))
        (tmp_path / PROFILE).write_text(costs_of(request, each).profile, encoding="utf-8")
        job = checked_job(source_of_table(job_table(request, each, problem), directory=tmp_path, name="other"))
        assert (job.workload, job.layout, job.problem) == (problem.workload, problem.layout, problem.problem)


@pytest.mark.parametrize(
    "model", [{"cp": 2}, {"tp": 2, "ep": 4, "etp": 1}, {"cp": 2, "ep": 4}, {"cp": 2, "context_exchange": "all-to-all"}]
)
def test_the_first_bounds_with_context_and_expert_groups_are_never_above_the_others(
    model: dict[str, object], tmp_path: Path
) -> None:
    request = tiny_request(
        tmp_path, sites=(8, 8), config=EXPERTS, model=model, tune={"batch": 16, "zero_stages": [0, 1], "microbatch_sizes": [1]}
    )
    assert candidates(request.choices)
    for each in candidates(request.choices):
        problem = candidate_problem(request, each).problem
        assert (
            0
            < simple_bound_ns(request, each, costs_of(request, each).totals)
            <= max(bound.value_ns for bound in lower_bounds(problem))
        )

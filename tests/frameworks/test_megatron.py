"""Plans in a Megatron training loop: losses and gradients are those of the whole model, run by Megatron itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from suite.optional_packages import importing

from schedc.ir.problem import DataParallel
from schedc.solvers.driver.registry import constructive

with importing("megatron"):
    from runs import megatron_runs
    from runs.megatron_runs import Case

    from schedc.runtime.frameworks.megatron_checks import splits

if TYPE_CHECKING:
    from runs.processes import Ranks

    from schedc.ir.plan import Plan


def plan(method: str, ranks: int, microbatches: int, **options: Any) -> Plan:
    problem = make_problem(ranks, microbatches, costs_ns=(10, 12, 9), **options)
    return plan_of(problem, constructive(method)(problem))


def run(ranks: Ranks, case: Case, most_error: float = 0.0) -> list[megatron_runs.Found]:
    """What the ranks have seen; losses and gradients are Megatron's own, bit by bit unless gradients may have an error."""
    results = ranks.run(megatron_runs.train, case)
    last = case.plan.problem.stages[-1].rank
    for rank, result in enumerate(results):
        assert isinstance(result, megatron_runs.Found), results
        assert result.error <= most_error
        assert result.stores == (result.expected if rank == last else [[]] * len(case.calls))
        assert len(result.tokens) == case.calls.count("step")  # finalized once in each
    return results


LOOP = {"placement": "loop", "chunks": 2}
WAVE = {"placement": "wave", "chunks": 2}
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("1f1b", {}),
    "gpipe": ("gpipe", {}),
    "interleaved": ("interleaved", LOOP),
    "wave": ("hanayo", WAVE),
    "zb-h1": ("zb-h1", {}),
    "zb-v": ("zb-v", WAVE),
    "greedy with W in parts": ("greedy{n_sub=3}", {"links": {(0, 1): (25, 10), (1, 0): (25, 10)}, "in_flight": 6}),
}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def selective(*modules: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": [*modules], "add_bias_linear": False}


@pytest.mark.parametrize("name", PLANS)
def test_losses_and_gradients_in_two_processes(two: Ranks, name: str) -> None:
    method, options = PLANS[name]
    made = plan(method, 2, 6 if name == "interleaved" else 5, **options)
    layers = (1, 3) if len(made.problem.stages) == 2 else (1, 2, 1, 1)
    for result in run(two, Case(made, layers)):
        assert result.tokens == [None, None]
        assert result.warned == []


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v"])
def test_losses_and_gradients_in_four_processes(four: Ranks, name: str) -> None:
    method, options = PLANS[name]
    made = plan(method, 4, 8, **options)
    run(four, Case(made, (2, 1, 1, 2) if len(made.problem.stages) == 4 else (1,) * 8, calls=("step",)))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("method", ["1f1b", "zb-h1"])
def test_tokens_are_counted(two: Ranks, method: str, per_token: bool) -> None:
    case = Case(plan(method, 2, 3), (1, 2), loss="tokens", options={"calculate_per_token_loss": per_token})
    first, last = run(two, case)
    assert last.tokens == last.expected_tokens
    assert first.tokens == ([0, 0] if per_token else [None, None])  # Megatron's finalize_model_grads asks the last rank
    assert (None in last.tokens) != per_token


@pytest.mark.parametrize("sequence", [False, True], ids=["", "and of sequences"])
@pytest.mark.parametrize("method", ["1f1b", "zb-h1", "greedy with W in parts"])
def test_with_tensor_parallelism(four: Ranks, method: str, sequence: bool) -> None:
    name, placed = PLANS[method]
    options = {"sequence_parallel": sequence, **(selective("core_attn", "layernorm") if sequence else {})}
    results = four.run(megatron_runs.train, Case(plan(name, 2, 3, **placed), (1, 1), "tokens", options, tensor_parallel=2))
    for rank, result in enumerate(results):
        assert isinstance(result, megatron_runs.Found), results
        assert result.error == 0
        assert result.stores == (result.expected if rank >= 2 else [[], []])
        assert result.split_layers == (0 if method == "1f1b" else 4 if rank < 2 else 5)


@pytest.mark.parametrize("method", ["1f1b", "zb-h1"])
def test_experts_with_an_auxiliary_loss(two: Ranks, method: str) -> None:
    experts = {
        "num_moe_experts": 4,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.1,
        "moe_token_dispatcher_type": "allgather",
        "add_bias_linear": False,
    }
    run(two, Case(plan(method, 2, 3), (1, 1), options=experts, scale=8.0))


def test_collectives_of_a_plan_are_left_to_megatron(two: Ranks) -> None:
    collectives = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5, 6), all_gather_ns=(1, 2))
    problem = replace(make_problem(2, 3), data_parallel=collectives)
    run(two, Case(plan_of(problem, constructive("zb-h1")(problem)), (1, 1)))


def test_losses_are_scaled(two: Ranks) -> None:
    run(two, Case(plan("zb-h1", 2, 3), (1, 2), scale=1000.0))


def test_weights_have_backwards_of_their_own(two: Ranks) -> None:
    fused, split = (run(two, Case(plan(method, 2, 3), (1, 2), calls=("step",))) for method in ("1f1b", "zb-h1"))
    assert [result.split_layers for result in fused] == [0, 0]
    assert [result.split_layers for result in split] == [4, 9]  # of the head, too


def test_backwards_that_cannot_be_split_are_named(two: Ranks) -> None:
    first, second = run(two, Case(plan("zb-h1", 2, 3), (1, 2), together=True))
    assert first.warned == [
        "plan 'test' has B and W apart, and the layer 'decoder.layers.0.mlp.linear_fc1' computes all its gradients at once: in B,"
        " and W only adds them up; compile with split_backward = false"
    ]
    assert second.warned == []  # once is enough


@pytest.mark.parametrize(
    ("recomputed", "said"),
    [
        (FULL, "recompute_granularity = 'full' computes all gradients of what is recomputed at once: B does W's work there"),
        (
            selective("mlp"),
            "recompute_modules = ['mlp'] computes all gradients of what is recomputed at once: B does W's work there",
        ),
        (selective("core_attn", "layernorm"), None),
    ],
    ids=["full", "mlp", "without weights"],
)
@pytest.mark.parametrize("method", ["1f1b", "zb-h1"])
def test_recomputation(two: Ranks, method: str, recomputed: dict[str, Any], said: str | None) -> None:
    """Whatever is recomputed, the rest has B and W apart."""
    first, second = run(two, Case(plan(method, 2, 3), (1, 2), options=recomputed))
    expected = [] if said is None or method == "1f1b" else [f"{said}; compile with split_backward = false"]
    assert [text.partition(", and ")[2] for text in first.warned] == expected
    assert (first.split_layers, second.split_layers) == ((0, 0) if method == "1f1b" else (4, 9))


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v", "greedy with W in parts"])
def test_weights_whose_gradients_are_delayed(two: Ranks, name: str) -> None:
    """As by Transformer Engine's layers: they are W's work, and where a plan has no W, that of the whole backward."""
    method, options = PLANS[name]
    made = plan(method, 2, 4, **options)
    for result in run(two, Case(made, (1,) * len(made.problem.stages), delayed=True)):
        own = len(made.problem.stages) // 2  # decoder layers, of four linear layers each
        assert result.delayed == {"W" if splits(made) else "BW": 2 * 4 * 4 * own}
        assert result.warned == []


def test_delayed_gradients_of_what_is_recomputed(two: Ranks) -> None:
    case = Case(plan("zb-h1", 2, 3), (1, 2), delayed=True, options=FULL)
    assert [result.delayed for result in run(two, case)] == [{"W": 2 * 3 * 4}, {"W": 2 * 3 * 8}]


@pytest.mark.parametrize("name", ["1f1b", "greedy with W in parts"])
def test_delayed_gradients_of_layers_that_run_twice(two: Ranks, name: str) -> None:
    """Of a microbatch there are two then, and Transformer Engine puts each in place of what is there. Sums have another order."""
    method, options = PLANS[name]
    run(two, Case(plan(method, 2, 4, **options), (1, 2), delayed=True, twice=True), most_error=1e-12)


VARIABLE = {"variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"}


def drawn(number: int) -> Case:
    """One of many combinations."""
    random = Random(number)
    method, options = PLANS[random.choice([*PLANS])]
    made = plan(method, 2, 4, **options)
    varying = random.random() < 0.5
    config = {
        "add_bias_linear": False,  # Megatron cannot recompute an mlp that gives its bias
        **random.choice([{}, FULL, *(selective(*random.sample(["core_attn", "layernorm", "mlp"], count)) for count in (1, 2))]),
        **(VARIABLE if varying else {}),
        "calculate_per_token_loss": random.random() < 0.5,
    }
    return Case(
        made,
        tuple(random.randint(1, 2) for _ in made.problem.stages),
        loss=random.choice(["mean", "tokens"]) if not config["calculate_per_token_loss"] else "tokens",
        options=config,
        scale=random.choice([None, 8.0]),
        calls=random.choice([("step", "step"), ("forward", "step", "step"), ("step", "collect", "step", "step")]),
        delayed=random.random() < 0.5,
        lengths=tuple(random.sample(range(2, 9), 3)),
    )


@pytest.mark.parametrize("number", range(16))
def test_combinations(two: Ranks, number: int) -> None:
    """Of plans, what is recomputed or delayed, and lengths of sequences that change from step to step or microbatch."""
    run(two, drawn(number))


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v"])
def test_forwards_alone_before_and_between_steps(two: Ranks, name: str) -> None:
    method, options = PLANS[name]
    made = plan(method, 2, 4, **options)
    calls = ("forward", "step", "collect", "forward", "step")
    run(two, Case(made, (1,) * len(made.problem.stages), loss="tokens", calls=calls))

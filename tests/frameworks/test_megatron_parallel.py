"""Plans in several pipelines of Megatron: its own reduction of gradients, shared embeddings, tokens counted over all of them."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from suite.optional_packages import importing

from schedc.solvers.driver.registry import constructive

with importing("megatron"):
    from runs import megatron_parallel_runs
    from runs.megatron_parallel_runs import Parallel
    from runs.megatron_runs import Case

    from schedc.runtime.frameworks.megatron import GradientSync

if TYPE_CHECKING:
    from runs.processes import Ranks


def case(method: str, layers: int = 1, **options: Any) -> Case:
    placements: dict[str, dict[str, Any]] = {
        "interleaved": {"placement": "loop", "chunks": 2},
        "zb-v": {"placement": "wave", "chunks": 2},
        "greedy{n_sub=2}": {"placement": "loop", "chunks": 2, "in_flight": 8},
        "greedy{n_sub=3}": {"links": {(0, 1): (25, 10), (1, 0): (25, 10)}, "in_flight": 6},
    }
    problem = make_problem(2, 4, costs_ns=(10, 12, 9), **placements.get(method, {}))
    return Case(plan_of(problem, constructive(method)(problem)), (layers,) * len(problem.stages), **options)


def assert_small(errors: list[Any], limit: float = 1e-14) -> None:
    for error in errors:
        assert isinstance(error, float), error
        assert error < limit


@pytest.mark.parametrize("method", ["1f1b", "zb-h1", "interleaved"])
def test_shared_embeddings(two: Ranks, method: str) -> None:
    assert_small(two.run(megatron_parallel_runs.train, Parallel(case(method), tied=True)))


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("method", ["zb-h1", "interleaved"])
def test_gradients_are_reduced_beside_the_backwards(four: Ranks, method: str, aligned: bool) -> None:
    assert_small(four.run(megatron_parallel_runs.train, Parallel(case(method), overlap=True, aligned=aligned)))


def drawn(number: int) -> Parallel:
    """One of the ways in which Megatron's distributed optimizer works, with a plan."""
    random = Random(number)
    method = ["1f1b", "zb-h1", "interleaved", "zb-v"][number % 4]
    overlap, delayed = random.random() < 0.7, random.random() < 0.5
    return Parallel(
        case(method, delayed=delayed),
        tied=method != "zb-v" and random.random() < 0.5,
        overlap=overlap,
        aligned=overlap and random.random() < 0.5,
        sharded=True,
        gather=overlap and random.random() < 0.6,
        fuse=delayed and random.random() < 0.5,
    )


@pytest.mark.parametrize("number", range(16))
def test_distributed_optimizer(four: Ranks, number: int) -> None:
    """Weights after three steps: gradients are reduced once, after the last W, and weights gathered before they are used."""
    assert_small(four.run(megatron_parallel_runs.train, drawn(number)))


FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@pytest.mark.parametrize("options", [{}, FULL], ids=["", "recomputed"])
@pytest.mark.parametrize("method", ["zb-h1", "greedy{n_sub=2}", "greedy{n_sub=3}"])
@pytest.mark.parametrize("fuse", [False, True])
def test_delayed_gradients_are_reduced_beside_the_backwards(four: Ranks, fuse: bool, method: str, options: dict[str, Any]) -> None:
    """Where linear layers add to `main_grad` themselves, and where they leave it to Megatron's hooks."""
    delayed = case(method, 2, delayed=True, options=options)
    assert_small(four.run(megatron_parallel_runs.train, Parallel(delayed, overlap=True, fuse=fuse)))


def test_distributed_optimizer_clips(four: Ranks) -> None:
    """By one norm, of all shards; Megatron has it in float32."""
    clips = Parallel(case("zb-h1"), overlap=True, sharded=True, clip=0.05)
    assert_small(four.run(megatron_parallel_runs.train, clips), 1e-6)


def test_several_instances_of_the_optimizer_are_reduced_at_the_end() -> None:
    started: list[bool] = []
    for instances in (1, 2):
        wrapper = SimpleNamespace(overlap_grad_reduce=True, num_distributed_optimizer_instances=instances)
        chunk: Any = SimpleNamespace(ddp_config=wrapper, start_grad_sync=lambda: started.append(True))
        GradientSync({0: chunk}, SimpleNamespace(grad_sync_func=None)).on_gradients_complete(0)
    assert started == [True]


def test_gradients_are_averaged_over_the_tokens_of_all_pipelines(four: Ranks) -> None:
    per_token = case("interleaved", loss="tokens", options={"calculate_per_token_loss": True})
    # Megatron divides by the number of tokens in float32.
    assert_small(four.run(megatron_parallel_runs.train, Parallel(per_token, tied=True)), 1e-7)


def test_tokens_that_are_counted_on_the_first_rank(two: Ranks) -> None:
    """Megatron broadcasts their number from the last rank, which has no last stage here."""
    per_token = case("zb-v", loss="tokens", options={"calculate_per_token_loss": True})
    assert_small(two.run(megatron_parallel_runs.train, Parallel(per_token)), 1e-7)

"""Where a step's time goes: the causes add up to it, and each is what a change of its own makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import CONFIG, EXPERTS, tiny_request

from schedc.errors import InvalidInput
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.causes import CAUSES, causes_ns
from schedc.study.tune.first_plans import baseline_of
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import costs_of
from schedc.study.tune.search import tune

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.tune.request import TuneRequest

ONE = {"microbatch_sizes": [1], "recompute": ["none"], "placements": ["unidirectional"], "split_backward": False}
NO_TIME = ("tensor parallelism", "context parallelism", "experts' exchange", "computing again", "waiting for sharded weights")


def causes(request: TuneRequest, **has: object) -> tuple[dict[str, float], int]:
    """Of the one candidate that has this, with its step."""
    found = [each for each in candidates(request.choices) if has.items() <= each.columns.items()]
    (each,) = found
    made = candidate_problem(request, each)
    plan = baseline_of(made.problem, SearchSettings(), [])
    of = causes_ns(request, each, made, plan)
    assert tuple(of) == CAUSES and sum(of.values()) == pytest.approx(plan.certificate.makespan_ns, rel=1e-9)
    assert min(of.values()) >= 0
    return of, plan.certificate.makespan_ns


def test_on_one_device_all_is_computing_and_the_optimizers(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, sites=(1,), tune=ONE | {"batch": 3})
    of, _ = causes(request)
    layers = request.sites[0].costs(request.choices.degrees[0], 1, False, False).layers
    assert of["computing"] == 3 * sum(layer.forward_ns[0] + layer.backward_ns[0] for layer in layers)
    assert of["optimizer"] > 0 and all(of[name] == 0 for name in (*NO_TIME, "idle in the pipeline"))
    assert of["gradients and weights of replicas"] == pytest.approx(0, abs=1)


@pytest.mark.parametrize("tied", [False, True])
def test_whole_states_take_the_optimizer_as_long_on_each_replica(tmp_path: Path, tied: bool) -> None:
    """Alone all behind the last block is the optimizer's; a tied matrix is stepped once."""
    config = CONFIG | {"tie_word_embeddings": tied}
    alone, beside = (
        causes(tiny_request(tmp_path, sites=(devices,), config=config, tune=ONE | {"ranks": [1], "zero_stages": [0]}))[0]
        for devices in (1, 2)
    )
    assert beside["optimizer"] == pytest.approx(alone["optimizer"], abs=1) and beside["gradients and weights of replicas"] > 0


def test_each_cause_is_there_where_its_degree_is(tmp_path: Path) -> None:
    open_tp = tiny_request(tmp_path, sites=(2,), model={"tp": [1, 2]}, tune=ONE | {"ranks": [1, 2], "recompute": ["none", "full"]})
    of_tensor, _ = causes(open_tp, tp=2, recompute="none")
    layers = costs_of(open_tp, candidates(open_tp.choices)[0]).layers
    assert of_tensor["tensor parallelism"] > 0 == of_tensor["idle in the pipeline"]
    again, _ = causes(open_tp, tp=1, ranks=2, recompute="full")
    assert again["computing again"] == pytest.approx(8 * sum(layer.forward_ns[0] for layer in layers) / 2)
    assert again["idle in the pipeline"] > 0 == again["tensor parallelism"]
    experts = tiny_request(tmp_path, sites=(2,), config=EXPERTS, model={"ep": 2}, tune=ONE | {"ranks": [1], "zero_stages": [1]})
    assert causes(experts)[0]["experts' exchange"] > 0
    context = tiny_request(tmp_path, sites=(2,), model={"cp": 2, "context_exchange": "all-to-all"}, tune=ONE | {"ranks": [1]})
    assert causes(context)[0]["context parallelism"] > 0
    slow: dict[str, object] = {"within": {"bandwidth": "1 GB/s"}}
    sharded = tiny_request(tmp_path, sites=(2,), tune=ONE | {"ranks": [1], "zero_stages": [1, 3]}, topology=slow)
    whole, divided = (causes(sharded, zero_stage=stage)[0] for stage in (1, 3))
    assert divided["waiting for sharded weights"] > 0 == whole["waiting for sharded weights"]
    assert divided["computing"] == pytest.approx(whole["computing"])
    assert divided["gradients and weights of replicas"] < whole["gradients and weights of replicas"]


def test_the_best_is_compared_with_what_is_asked_for(tmp_path: Path) -> None:
    request = tiny_request(tmp_path, sites=(4,), tune={"batch": 64, "ranks": [1, 2, 4], "microbatch_sizes": [4]})
    found = tune(request, SearchSettings(), candidate_s=0.0, against={"ranks": "2", "recompute": "full", "placement": "wave"})
    assert found.compared is not None and found.best.step_ns is not None
    each, step_ns = found.compared.row.candidate, found.compared.row.step_ns
    assert (each.ranks, each.recompute, each.placement) == (2, "full", "wave") and step_ns is not None
    assert sum(found.compared.best_ns.values()) == pytest.approx(found.best.step_ns)
    assert sum(found.compared.differences_ns.values()) == pytest.approx(step_ns - found.best.step_ns)
    others = tune(request, SearchSettings(), candidate_s=0.0).compared
    assert others is not None and (others.row.candidate.ranks > 1) is not (found.best.candidate.ranks > 1)
    for against, expected in (
        ({"ranks": "3", "tp": "1"}, "ranks=3,tp=1, which no candidate has; expected ranks of 1, 2, 4"),
        ({"rank": "2"}, "rank=2, which no candidate has; expected values of ranks, data_parallel"),
    ):
        with pytest.raises(InvalidInput, match=f"--why: found {expected}"):
            tune(request, SearchSettings(), against=against)
    crossing = tiny_request(tmp_path, sites=(1, 2), tune={"ranks": [3], "microbatch_sizes": [4]})
    same = tune(crossing, SearchSettings(), candidate_s=0.0, against={"site_order": "1 0"}).compared
    assert same is not None and same.row.candidate.site_order == (1, 0), "as the table has it"

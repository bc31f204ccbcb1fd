"""Stages that are more than plain modules: right where the backward is one, refused where B and W apart would be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import few_plan, made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from inputs.sharded_problems import plan_that_gathers_again
from runs import wrapped_runs
from runs.processes import without_teller
from torch import nn

from schedc.errors import Unsupported
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.stage.apart import check_stages
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from runs.processes import Ranks


ONE_AT_A_TIME = {
    "ddp": "DistributedDataParallel around its module",
    "replicate": "around its module",
    "fsdp1": "FullyShardedDataParallel around its module",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_AT_A_TIME)
def test_refused_whatever_the_plan(two: Ranks, kind: str) -> None:
    """Where the next forward comes before the backward, DDP gives wrong gradients without a word, and the first FSDP fails."""
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("gpipe")(problem))
    for rank, said in enumerate(two.run(wrapped_runs.refused, plan, kind)):
        assert said.startswith(f"Unsupported: stage {rank} has ")
        assert ONE_AT_A_TIME[kind] in said
        assert said.endswith("; give load the module without it, and a data_parallel_group")
        assert "\n" not in said


@pytest.mark.slow
def test_refused_when_it_comes_after_load(two: Ranks) -> None:
    """Before the next step computes anything."""
    for said in two.run(wrapped_runs.refused, made_by("zb-h1"), "fsdp2", later=True):
        assert "has got fully_shard since load" in without_teller(said)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp2 that keeps its weights", "fsdp2 by layer"])
def test_gradients_of_shards(two: Ranks, kind: str, split: bool, recompute: bool) -> None:
    """Several microbatches in flight; the weights are sharded over two processes, with their losses and without."""
    problem = make_problem(1, 4, placement="loop", chunks=2, split_backward=split)
    plan = plan_of(problem, constructive("greedy{n_sub=1}")(problem))
    for errors in two.run(wrapped_runs.sharded, plan, kind, recompute):
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-12


@pytest.mark.parametrize("around", ["nothing", "stages", "loss"])
def test_what_fsdp_has_reduced_does_not_run_again(two: Ranks, around: str) -> None:
    assert two.run(wrapped_runs.may_run_again, made_by("1f1b"), around) == [around == "nothing"] * 2


def test_sharded_stages_are_loaded_again_after_a_failure(two: Ranks) -> None:
    """FSDP keeps gradients that have added up so far, and weights that were gathered: they are of the step that failed."""
    problem = make_problem(1, 4, placement="loop", chunks=2)
    for errors in two.run(wrapped_runs.goes_on_after_a_failure, plan_of(problem, constructive("1f1b")(problem))):
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-12


@pytest.mark.parametrize("split", [False, True])
def test_weights_are_whole_when_the_plan_says(four: Ranks, split: bool) -> None:
    """A rank has room for one of its three stages: they are gathered again and again, also before a W."""
    plan = plan_that_gathers_again(split=split)
    assert any(len(rank.collectives) > 2 * len(plan.problem.stages_on(rank.rank)) for rank in plan.ranks)
    for found in four.run(wrapped_runs.gathered_as_planned, plan):
        assert isinstance(found, list), found
        error, held, planned = found
        assert error < 1e-12
        assert [stages for stages, _ in held] == [stages for stages, _ in planned]
        assert max(own for _, own in held) == pytest.approx(max(own for _, own in planned), rel=0.05)  # FSDP fills up shards


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_tensor_parallel_stages(four: Ranks, name: str, recompute: bool) -> None:
    """Two ranks of the plan, each of two processes that share its layers."""
    for errors in four.run(wrapped_runs.tensor_parallel, made_by(name), recompute):
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_compiled_stages(two: Ranks, name: str) -> None:
    results = two.run(wrapped_runs.compiled, few_plan(name), "aot_eager", limit_s=250)
    for errors in results:
        assert isinstance(errors, list), results
        assert max(errors) < 1e-9


class Wrapped(torch.Tensor):
    """A weight that does more than a tensor does."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return super().__torch_dispatch__(function, types, args, kwargs or {})


def test_weights_that_are_more_than_tensors() -> None:
    stage: Any = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        stage[0]._parameters["weight"] = stage[0].weight.detach().as_subclass(Wrapped)
    with pytest.raises(Unsupported, match=r"stage 3 has a Wrapped as weight '0.weight', .* summed over replicas"):
        check_stages({3: stage}, split=(), summed=True)
    check_stages({3: stage}, split={3}, summed=False)


def test_ranks_do_not_choose_beside_peers() -> None:
    """Of two processes that share a layer, each would run its collectives in another order."""
    problem = make_problem(2, 4, split_backward=False)
    plan = plan_of(problem, constructive("1f1b")(problem))
    plain: Any = {0: nn.Sequential(nn.Linear(2, 2))}
    ChoosingPipe.check(plan, plain, alone=True)
    with pytest.raises(Unsupported, match=r"a swap_group was given, so stages have collectives .*; load without kind=ChoosingPipe"):
        ChoosingPipe.check(plan, plain, alone=False)
    with torch.no_grad():
        plain[0][0]._parameters["weight"] = plain[0][0].weight.detach().as_subclass(Wrapped)
    with pytest.raises(Unsupported, match=r"stage 0 has a Wrapped as weight '0.weight', so stages have collectives"):
        ChoosingPipe.check(plan, plain, alone=True)


def test_old_backward_hooks() -> None:
    stage: Any = nn.Sequential(nn.Linear(2, 2))
    check_stages({0: stage}, split={0}, summed=True)
    stage[0].register_full_backward_hook(lambda *_: None)
    check_stages({0: stage}, split={0}, summed=True)
    other: Any = nn.Sequential(nn.Linear(2, 2))
    other[0].register_backward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match=r"stage 0 has a backward hook on module '0' .* register_full_backward_hook instead"):
        check_stages({0: other}, split={0}, summed=False)
    check_stages({0: other}, split=(), summed=True)


def test_checkpoints_of_activations_are_harmless() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    check_stages({0: nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)))}, split={0}, summed=True)

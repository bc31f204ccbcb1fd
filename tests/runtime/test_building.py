"""A model's layers as stages: each rank gets its own, in order; what does not fit is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from torch import nn

import schedc.runtime
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import write_plan
from schedc.runtime.session.building import unlike_layers
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path


LAYERS = [nn.Linear(3, 3) for _ in range(9)]


def test_every_rank_gets_its_layers(tmp_path: Path) -> None:
    """From the plan or its file; from a list or a Sequential. All stages in a row are the model."""
    made = made_by("zb-v", counts=[1, 4, 2, 2], placement="wave", chunks=2)
    write_plan(made, tmp_path / "plan.json")
    first = schedc.runtime.build_stages(LAYERS, made, 0)
    second = schedc.runtime.build_stages(nn.Sequential(*LAYERS), str(tmp_path / "plan.json"), rank=1)
    assert (list(first), list(second)) == ([0, 3], [1, 2])
    stages = {**first, **second}
    assert [layer for stage in range(4) for layer in stages[stage]] == LAYERS
    value = torch.randn(2, 3)
    whole = nn.Sequential(*LAYERS)(value)
    for stage in range(4):
        value = stages[stage](value)
    assert torch.equal(value, whole)


def test_a_rank_with_both_replicas_has_a_copy() -> None:
    made = made_by("chimera", counts=[4, 3, 2], ranks=3, placement="bidirectional")
    one, other = schedc.runtime.build_stages(LAYERS, made, 1).values()
    assert list(one) == LAYERS[4:7]
    for layer, copied in zip(one, other, strict=True):
        assert isinstance(layer, nn.Linear) and isinstance(copied, nn.Linear)
        assert layer.weight is not copied.weight and torch.equal(layer.weight, copied.weight)


def test_copies_of_two_stages_share_what_the_stages_share() -> None:
    layers = [nn.Linear(3, 3) for _ in range(6)]
    layers[1].weight = layers[4].weight
    made = made_by("chimera", counts=[2, 2, 2], ranks=3, placement="bidirectional")
    stages = tuple(replace(stage, rank=1) for stage in made.problem.stages)
    four = schedc.runtime.build_stages(layers, replace(made, problem=replace(made.problem, stages=stages)), 1)
    weights = {layer.weight for module in four.values() for layer in module if isinstance(layer, nn.Linear)}
    assert len(weights) == 10
    assert not any(module.ties_of_ranks for module in four.values())


def test_a_weight_of_two_ranks_is_known_by_one_name() -> None:
    layers = [nn.Linear(3, 3) for _ in range(6)]
    layers[1].weight = layers[4].weight = layers[0].weight
    made = made_by("1f1b", counts=[3, 3])
    found = [schedc.runtime.build_stages(layers, made, rank)[rank].ties_of_ranks for rank in range(2)]
    assert found == [{"0.weight": "0.weight"}, {"0.weight": "1.weight"}]
    found = [schedc.runtime.build_stages(layers, made_by("1f1b", counts=[5, 1]), rank)[rank].ties_of_ranks for rank in range(2)]
    assert found == [{}, {}]


def test_layers_take_tuples_as_a_profile_does() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            return [x + y, y]

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    made = schedc.runtime.build_stages([Two(), Two(), Sum(), nn.Identity()], made_by("1f1b", counts=[3, 1]), 0)[0]
    assert made(torch.ones(1), torch.ones(1)) == 4
    wrong = schedc.runtime.build_stages([nn.LSTM(2, 2), *LAYERS[:3]], made_by("1f1b", counts=[3, 1]), 0)[0]
    with pytest.raises(InvalidInput, match="what a layer gives must be a tensor or a tuple of tensors; found tuple with tuple"):
        wrong(torch.ones(1, 2))


@pytest.mark.parametrize(
    ("layers", "rank", "says"),
    [
        (LAYERS[1:], 0, "the model has 8 layers, plan 'test' is for 9; give build_stages as many"),
        (LAYERS, 2, "this is rank 2, plan 'test' is for the ranks 0 to 1"),
    ],
)
def test_what_does_not_fit(layers: list[nn.Module], rank: int, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        schedc.runtime.build_stages(layers, made_by("1f1b", counts=[4, 5]), rank)
    assert str(caught.value) == says


def test_a_plan_without_layers() -> None:
    problem = make_problem(2, 4, costs_ns=(10, 12, 9))
    problem = replace(problem, stages=tuple(replace(stage, layers=None) for stage in problem.stages))
    with pytest.raises(InvalidInput, match="plan 'test' does not say which layers its stages have; compile it with"):
        schedc.runtime.build_stages(LAYERS, plan_of(problem, constructive("1f1b")(problem)), 0)


def test_nothing_else_is_made_up() -> None:
    with pytest.raises(AttributeError, match="build_stage"):
        _ = schedc.runtime.build_stage  # type: ignore[attr-defined]


def linear(*widths: int) -> list[nn.Module]:
    return [nn.Linear(2, width) for width in widths]


def wrapped(*widths: int) -> list[nn.Module]:
    return [nn.Sequential(layer) for layer in linear(*widths)]


def compiled(*widths: int) -> list[Any]:
    return [torch.compile(layer, backend="eager") for layer in linear(*widths)]


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (linear(4, 4, 4, 4), linear(4, 4, 4, 4), False),
        (wrapped(4, 4) + linear(4, 4), linear(4, 4) + wrapped(4, 4), False),  # each its own
        (compiled(4, 4) + linear(4, 4), linear(4, 4) + compiled(4, 4), False),
        (linear(1) + wrapped(4) + linear(4, 2), linear(1, 4) + wrapped(4) + linear(2), False),
        (linear(3, 5, 4, 4), linear(4, 4, 3, 5), False),  # cut by hand
        (linear(1, 2) + [nn.Identity()] * 2, [nn.Identity()] * 2 + linear(4, 3), False),  # not known what is right
        ([*linear(1, 2), nn.ReLU(), nn.Tanh()], [*linear(1, 2), nn.Tanh(), nn.ReLU()], True),
        (linear(2, 1, 3, 4), linear(1, 2, 3, 4), True),
        (compiled(1, 2) + linear(3, 4), linear(2, 1) + compiled(3, 4), True),
        (linear(1, 3, 2, 4), linear(1, 2, 3, 4), True),  # over both ranks' parts
        ([nn.Linear(2, 1), nn.Linear(2, 2), nn.Bilinear(1, 1, 1), nn.Linear(2, 3)], linear(1, 2, 3, 3), False),
    ],
)
def test_layers_in_another_order(first: list[nn.Module], second: list[nn.Module], refused: bool) -> None:
    """Found where it is sure; the ranks' own layers may be wrapped, compiled or cut, and others may be something else."""
    made = made_by("1f1b", counts=[2, 2])
    lists = [
        next(iter(schedc.runtime.build_stages(layers, made, rank).values())).layers_of_model
        for rank, layers in enumerate((first, second))
    ]
    said = unlike_layers(made.problem, lists)
    assert (said is not None) == refused, said

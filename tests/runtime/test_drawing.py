"""What layers draw with a seed: by step, layer and microbatch alone; and nothing is left of it for others."""

from __future__ import annotations

import pytest
import torch
from inputs.few_plans import made_by
from torch import nn

from schedc.ir import Kind, Op
from schedc.runtime.session.building import build_stages
from schedc.runtime.session.drawing import Drawing, seed_of


class Draws(nn.Module):
    """Gives random numbers of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, torch.rand(2, device=x.device)])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def drawn(
    counts: list[int], device: torch.device, pipeline: int, orders: list[int], compiled: bool = False
) -> dict[int, torch.Tensor]:
    """By microbatch, what all layers draw in step 5, in this order of microbatches."""
    plan = made_by("1f1b", len(counts), counts=counts)
    layers = [Draws() for _ in range(sum(counts))]
    found = {microbatch: torch.empty(0, device=device) for microbatch in orders}
    for rank in range(len(counts)):
        stages = build_stages(layers, plan, rank)
        drawing = Drawing(3, pipeline, device)
        if compiled:
            layers[1].compile(backend="eager")
        drawing.use(plan, stages)
        with drawing.step(5):
            for microbatch in orders:
                found[microbatch] = drawing.of(Op(Kind.F, rank, microbatch), stages[rank])(found[microbatch])
        drawing.close()
        assert not any(layer._forward_pre_hooks for layer in layers)
    return found


def test_any_order_and_layout(device: torch.device) -> None:
    one, other = drawn([4], device, 1, [0, 1, 2]), drawn([1, 3], device, 1, [2, 0, 1])
    for microbatch, values in one.items():
        assert torch.equal(values, other[microbatch])
        for layer, pair in enumerate(torch.split(values, 2)):
            torch.manual_seed(seed_of(3, 5, layer, 4 + microbatch))
            assert torch.equal(pair, torch.rand(2, device=device))


def test_a_compiled_layer_draws_the_same() -> None:
    cpu = torch.device("cpu")
    assert torch.equal(drawn([2], cpu, 0, [0], compiled=True)[0], drawn([2], cpu, 0, [0])[0])


def test_a_stage_of_the_jobs_own_counts_as_its_first_layer(device: torch.device) -> None:
    drawing = Drawing(3, 0, device)
    drawing.use(made_by("1f1b", 2, counts=[3, 1]), {1: Draws()})
    with drawing.step(0):
        found = drawing.of(Op(Kind.F, 1, 2), Draws())(torch.empty(0, device=device))
    torch.manual_seed(seed_of(3, 0, 3, 2))
    assert torch.equal(found, torch.rand(2, device=device))


def test_nothing_is_left_of_it(device: torch.device) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, device=device)
    torch.manual_seed(0)
    drawn([2], device, 0, [0])
    assert torch.equal(torch.rand(3, device=device), expected)

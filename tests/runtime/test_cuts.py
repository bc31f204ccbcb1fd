"""Where B and W part: graphs of one shape are cut once, others anew, and W looks at what is its own alone."""

from __future__ import annotations

from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
from runs.stage_blocks import WIDTH, Residual, assert_equal, gradients, run_all
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.splitting import frontier, halves, kept


class Branching(nn.Module):
    """Its graph depends on the data: one of two layers, or both, and sometimes a weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = int(x.detach().flatten()[0])
        y = self.one(x) if kind != 1 else self.other(x)
        if kind >= 2:
            y = self.other(torch.tanh(y))
        result: torch.Tensor = self.one(torch.sin(y)) if kind == 3 else y
        return result


def compared(stage: nn.Module, values: list[torch.Tensor], way: str = "B W") -> None:
    """Gradients of blocks that are all alive at once, against plain backwards."""
    leaves = [value.clone().requires_grad_() for value in values]
    for leaf in leaves:
        stage(leaf).pow(2).sum().backward()
    expected = [leaf.grad for leaf in leaves] + gradients(stage)
    stage.zero_grad()
    blocks = [StageBlock(stage, [value.clone().requires_grad_()], split=True) for value in values]
    given: list[torch.Tensor | None] = []
    for block in blocks:
        (output,) = block.take()
        assert output is not None
        given += run_all(block, way, (2 * output.detach(),))
    assert_equal([*given, *gradients(stage)], expected)


def test_microbatches_whose_graphs_differ_are_cut_each_by_its_own_shape() -> None:
    torch.manual_seed(0)
    stage = Branching().double()
    values = [torch.randn(2, WIDTH).double() for _ in range(12)]
    for number, value in enumerate(values):
        value[0, 0] = (0, 1, 2, 3, 1, 3)[number % 6] + 0.5
    compared(stage, values)


def test_w_is_right_where_nodes_do_not_say_what_they_have_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd runs the nodes then: the fields that W reads are not public, and another torch may lack them."""
    torch.manual_seed(0)
    stage = nn.Sequential(Residual(), nn.Linear(WIDTH, WIDTH)).double()
    values = [torch.randn(2, WIDTH).double() for _ in range(3)]
    monkeypatch.setattr(kept, "_fields_of", lambda _kind: ())
    compared(stage, values)


def test_graphs_of_one_shape_are_cut_once() -> None:
    torch.manual_seed(0)
    stage = nn.Sequential(Residual(), nn.Linear(WIDTH, WIDTH)).double()
    frontier._cut_of.cache_clear()
    compared(stage, [torch.randn(2 + number, WIDTH).double() for number in range(4)])
    found = frontier._cut_of.cache_info()
    assert (found.misses, found.hits) == (1, 3)


@pytest.mark.parametrize("at_once", [1, 4 * WIDTH * WIDTH, 1 << 25])
def test_one_call_in_w_makes_at_most_this_many_gradients(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight's at least, however large it is, and as few calls of autograd as that allows."""
    torch.manual_seed(0)
    monkeypatch.setattr(halves, "AT_ONCE", at_once)
    sizes: list[int] = []
    begin: Any = halves._FromJoints.apply

    def counted(works: list[halves.WeightWork], *sides: torch.Tensor) -> Any:
        sizes.append(sum(one.joint.weights for one in works))
        return begin(works, *sides)

    monkeypatch.setattr(halves._FromJoints, "apply", counted)
    stage = nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)), nn.Linear(WIDTH, 9 * WIDTH, bias=False)
    ).double()
    compared(stage, [torch.randn(3, WIDTH).double()])
    square = WIDTH * WIDTH
    assert sizes == {1: [9 * square] + 8 * [square], 4 * square: [9 * square, 4 * square, 4 * square]}.get(at_once, [17 * square])


def test_what_a_node_reads_in_w_is_released_with_its_part() -> None:
    """Not with the last part: a later part's nodes hold those before them."""
    torch.manual_seed(0)
    stage = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    block = StageBlock(stage, [torch.randn(4, WIDTH).double().requires_grad_()], split=True)
    block.take()
    block.backward_input((torch.ones(4, WIDTH).double(),))
    block.take()
    readings = [work.reading for work in block._weight_work]
    for part in range(3):
        assert [any(one.tensor is None for one in reading.saved) for reading in readings if reading] == [
            at < part for at in range(3)
        ]
        block.backward_weight(part, (1, 1, 1))


def test_an_activations_hook_is_called_once_where_w_begins() -> None:
    torch.manual_seed(0)
    calls: list[torch.Tensor] = []

    def tripled(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(gradient)
        return 3 * gradient

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: Any = self.layer(x)
            y.register_hook(tripled)
            result: torch.Tensor = torch.tanh(y)
            return result

    compared(Hooked().double(), [torch.randn(2, WIDTH).double()])
    assert len(calls) == 2  # the plain backward's, and B's


def test_what_a_hook_at_a_node_returns_for_a_weight_counts() -> None:
    torch.manual_seed(0)

    def tripled(gradients: tuple[torch.Tensor | None, ...], _: object) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if one is None else 3 * one for one in gradients)

    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: Any = x @ self.weight
            y.grad_fn.register_hook(tripled)
            return torch.tanh(y)

    compared(Hooked().double(), [torch.randn(2, WIDTH).double() for _ in range(2)])


@pytest.mark.parametrize("same", [False, True], ids=["a view", "the tensor"])
def test_an_input_s_gradient_is_in_memory_that_no_weight_s_gradient_gets(same: bool) -> None:
    """Autograd gives one tensor for both terms of a sum; what W makes `.grad` of it is added to in place."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, WIDTH) if same else torch.ones(2 * WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.weight.view_as(x)

    stage = Shifted()
    given: list[torch.Tensor | None] = []
    for seed in (1.0, 2.0):
        block = StageBlock(stage, [torch.zeros(2, WIDTH, requires_grad=True)], split=True)
        block.take()
        block.backward_input((torch.full((2, WIDTH), seed),))
        given += block.take()
        block.backward_weight()
    assert [one is not None and sorted({*one.flatten().tolist()}) for one in given] == [[1.0], [2.0]]
    assert stage.weight.grad is not None
    assert {*stage.weight.grad.flatten().tolist()} == {3.0}


class Scaled(torch.autograd.Function):
    """x·w + x·w, whose backward changes the gradients that it gives in place before it gives them, `times` times."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, same: torch.Tensor, times: int) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.times = times
        return x * weight + x * same

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        one, other = (given[0] * x).sum(0), (given[0] * x).sum(0)
        for _ in range(ctx.times):
            one.neg_()
            other.neg_()
        return 2 * given[0] * weight, one, other, None


def test_a_gradient_that_has_the_id_of_one_that_is_gone_has_a_version_of_its_own() -> None:
    torch.manual_seed(0)

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList(torch.randn(WIDTH) for _ in range(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, scale in enumerate(self.scales):
                x = Scaled.apply(x, scale, scale, 2 * number)  # type: ignore[no-untyped-call]
            return x

    compared(Stage().double(), [torch.randn(2, WIDTH).double()])


def test_what_f_does_with_selective_checkpoints_is_nothing_to_others() -> None:
    """Torch finds what some operators do under such a mode by its class; and one that no F has made runs once, as torch says."""
    torch.manual_seed(0)
    layer, modes, others = nn.Linear(WIDTH, WIDTH), list[Any](), list[torch.Tensor]()

    def contexts() -> Any:
        modes.append(partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])())
        return modes[-1]

    def region(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(lambda y: layer(y).sin(), x, use_reentrant=False, context_fn=contexts)
        return result

    def beside() -> None:
        others.append(region(torch.ones(2, WIDTH, requires_grad=True)).sum())

    def stage(x: torch.Tensor) -> torch.Tensor:
        thread = Thread(target=beside)
        thread.start()
        thread.join()
        return region(x)

    block = StageBlock(stage, [torch.ones(2, WIDTH, requires_grad=True)], split=True)
    (output,) = block.take()
    assert output is not None
    beside()
    assert {type(mode) for _, mode in modes} == {torch.utils.checkpoint._CachedTorchDispatchMode}
    beside()
    del modes[-1][1].runs_twice  # as of a region that ran forward before the runtime was imported
    run_all(block, "B W", (torch.ones_like(output),))
    for other in others:
        torch.autograd.backward(other, retain_graph=True)
        with pytest.raises(RuntimeError, match="backward an extra time"):
            torch.autograd.backward(other)

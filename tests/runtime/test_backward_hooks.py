"""Hooks around a backward: with B and W apart each acts as it does in one backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WAYS, WIDTH, Attention, Residual, assert_equal, gradients, run_all
from torch import nn
from torch.nn.utils import prune

from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from collections.abc import Callable


class Tied(nn.Module):
    """A weight used at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.tanh(self.other(torch.tanh(self.layer(x)))) @ self.layer.weight
        return result


class Cat(nn.Module):
    """One operation on the activation, a weight, and something made of the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 5, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([x, self.weight, torch.sin(self.weight), x])
        return joined[:4] + joined[4:]


def layers() -> nn.Module:
    return nn.Sequential(Residual(), Attention(), nn.Linear(WIDTH, WIDTH))


def compared(stage: nn.Module, way: str, *, first: bool, calls: list[Any] | None = None) -> None:
    """Gradients of two microbatches against a plain backward; the hooks' calls as well if they are counted."""
    torch.manual_seed(0)
    values = [torch.randint(10, (3, 5)) if first else torch.randn(3, 5, WIDTH).double() for _ in range(2)]
    leaves = [value if first else value.clone().requires_grad_() for value in values]
    gradient = torch.randn_like(stage(leaves[0]).detach())
    for leaf in leaves:
        stage(leaf).backward(gradient)
    expected, counted = [leaf.grad for leaf in leaves] + gradients(stage), len(calls or ())
    stage.zero_grad()
    if calls is not None:
        calls.clear()
    blocks = [StageBlock(stage, [value.clone().requires_grad_(not first)], split=way != "BW") for value in values]
    given: list[torch.Tensor | None] = []
    for block in blocks:
        block.take()
        given += run_all(block, way, (gradient,))
    assert_equal([*given, *gradients(stage)], expected)
    if calls is not None:
        assert len(calls) == counted


STAGES: dict[str, Callable[[], nn.Module]] = {"layers": layers, "tied": Tied, "nested": Cat}


class Hook:
    """Counts its calls, and multiplies the gradients that it gets."""

    def __init__(self, calls: list[Any], factor: float) -> None:
        self.calls, self.factor = calls, factor

    def tensor(self, gradient: torch.Tensor) -> torch.Tensor:
        self.calls.append(self)
        return gradient * self.factor

    def accumulated(self, weight: torch.Tensor) -> None:
        self.calls.append(self)
        assert weight.grad is not None
        weight.grad.mul_(self.factor)

    def node(self, *_: Any) -> None:
        self.calls.append(self)

    def module(self, module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        return self.before_module(module, grad_input)

    def before_module(self, _: nn.Module, grad_output: Any) -> Any:
        self.calls.append(self)
        return tuple(None if one is None else one * self.factor for one in grad_output)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STAGES)
def test_tensor_hooks_on_weights_act_once(name: str, way: str) -> None:
    """Even where B computes the weight's gradient."""
    stage: Any = STAGES[name]().double()
    calls: list[Any] = []
    for number, weight in enumerate(stage.parameters()):
        weight.register_hook(Hook(calls, number + 2).tensor)
    compared(stage, way, first=False, calls=calls)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STAGES)
def test_hooks_after_accumulation_act_once(name: str, way: str) -> None:
    """Those of `register_post_accumulate_grad_hook`, and those at the node that adds to `.grad`, as Megatron has them."""
    stage: Any = STAGES[name]().double()
    calls: list[Any] = []
    nodes = []
    for weight in stage.parameters():
        weight.register_post_accumulate_grad_hook(Hook(calls, 0.5).accumulated)
        nodes.append(torch.autograd.graph.get_gradient_edge(weight).node)
        nodes[-1].register_hook(Hook(calls, 1).node)
    compared(stage, way, first=False, calls=calls)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_full_backward_hooks_of_modules_act_once(way: str, first: bool) -> None:
    torch.manual_seed(0)
    stage = (nn.Sequential(nn.Embedding(10, WIDTH), layers()) if first else layers()).double()
    calls: list[Any] = []
    for number, module in enumerate(stage.modules()):
        module.register_full_backward_hook(Hook(calls, 1 + number / 8).module)
        module.register_full_backward_pre_hook(Hook(calls, 0.5).before_module)
    compared(stage, way, first=first, calls=calls)


class Scaled(nn.Module):
    """Hooks that change the gradients at activations: after an embedding and after a layer."""

    def __init__(self, *, first: bool, positions: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH) if first else nn.Linear(WIDTH, WIDTH)
        self.places = nn.Parameter(torch.randn(5, WIDTH)) if positions else None
        self.body = layers()

    def forward(self, x: Any) -> torch.Tensor:
        x = self.table(x)
        x.register_hook(Hook([], 3).tensor)
        if self.places is not None:
            x = x + self.places
            x.register_hook(Hook([], 5).tensor)
        result: Any = self.body(x + torch.sin(x))
        result.register_hook(Hook([], 0.5).tensor)
        return result  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_tensor_hooks_on_activations_change_gradients_once(first: bool, positions: bool, way: str) -> None:
    compared(Scaled(first=first, positions=positions).double(), way, first=first)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["weight norm", "old weight norm", "spectral norm", "pruned"])
def test_parametrized_weights(name: str, way: str) -> None:
    inner, outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    utils: Any = nn.utils
    if name == "weight norm":
        utils.parametrizations.weight_norm(inner)
    elif name == "old weight norm":
        with pytest.warns(FutureWarning):
            utils.weight_norm(inner)
    elif name == "spectral norm":
        utils.parametrizations.spectral_norm(inner)
    else:
        pruning: Any = prune
        pruning.random_unstructured(inner, "weight", 0.5)
    stage = nn.Sequential(outer, nn.GELU(), inner, Residual()).double()
    compared(stage.eval() if name == "spectral norm" else stage, way, first=False)

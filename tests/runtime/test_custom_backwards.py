"""Stages whose backward is one piece: functions of the user's own, Megatron's linear layers, compiled stages. Each runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WAYS, WIDTH, Residual, assert_equal, gradients, run_all
from torch import nn

from schedc.runtime.replicas.buckets import set_gradient_type
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.recompute import Buffers

if TYPE_CHECKING:
    from collections.abc import Callable


class Counted(torch.autograd.Function):
    """A linear layer whose backward counts its runs and calls a collective, as tensor parallelism does."""

    runs = 0
    collective: Callable[[torch.Tensor], torch.Tensor] = torch.clone

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        result: torch.Tensor = x @ weight.t() + bias
        return result

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = given
        Counted.runs += 1
        rows = gradient.reshape(-1, gradient.shape[-1])
        return Counted.collective(gradient @ weight), rows.t() @ x.reshape(-1, x.shape[-1]), rows.sum(0)


class Fused(torch.autograd.Function):
    """Adds the weight's gradient to `weight.main_grad` in its backward, and gives autograd a dummy or nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, dummy: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dummy = dummy
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = given
        weight.main_grad.add_(gradient.reshape(-1, gradient.shape[-1]).t() @ x.reshape(-1, x.shape[-1]))
        weight.grad_added_to_main_grad = True
        return gradient @ weight, torch.zeros_like(weight) if ctx.dummy else None, None


class Own(nn.Module):
    """A linear layer by `Counted`."""

    def __init__(self, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH)) if weight is None else weight
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Counted
        result: torch.Tensor = function.apply(x, self.weight, self.bias)
        return result


class Halved(Own):
    """The weight comes to the function through a cast and a transposition, as under autocast."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Counted
        result: torch.Tensor = function.apply(x, torch.tanh(self.weight).t(), self.bias * 2)
        return result


class Table(nn.Module):
    """The look-up of an embedding by `Counted`: where a first stage's path ends."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Own()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.own(nn.functional.one_hot(x, WIDTH).double())
        return result


class TwoOutputs(torch.autograd.Function):
    """Takes two activations and two weights, one of them frozen; gives two tensors, of which the second may have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, frozen: torch.Tensor) -> Any:
        product = x * weight
        ctx.save_for_backward(x, weight, frozen, product)
        ctx.set_materialize_grads(False)
        return product, y * frozen

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Any:
        x, weight, frozen, product = ctx.saved_tensors
        Counted.runs += 1
        first, second = given
        assert torch.equal(product, x * weight)
        by_x = by_weight = by_y = None
        if first is not None:
            by_x, by_weight = first * weight, (first * x).sum((0, 1))
        if second is not None:
            by_y = second * frozen
        return by_x, by_y, by_weight, None


class Paired(nn.Module):
    """Two uses of `TwoOutputs`, the second with one output unused and the same weight as the first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.own = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = TwoOutputs
        first, second = function.apply(x, torch.sin(x), self.weight, self.frozen)
        third, _ = function.apply(self.layer(first), second, self.weight * 2, self.frozen)
        result: torch.Tensor = third + function.apply(second, x, self.own, self.frozen)[0]
        return result


class Rounded(torch.autograd.Function):
    """A weight as quantized, its gradient as if it were not."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return (weight * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
        Counted.runs += 1
        return given[0]


class Quantized(Own):
    """A layer by autograd's own nodes, with a function of the user's own on the weight alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Rounded
        return nn.functional.linear(x, function.apply(self.weight), self.bias)


class Attribute(torch.autograd.Function):
    """A weight times what is no argument: the stage's input, kept as an attribute."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        (ctx.x,) = seen
        result: torch.Tensor = weight * ctx.x.sum()
        return result

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, None]:
        Counted.runs += 1
        return given[0] * ctx.x.sum(), None


class ByInput(Own):
    """What runs in W alone reads the stage's input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Attribute
        y = x if x.is_floating_point() else nn.functional.one_hot(x, WIDTH).double()
        return nn.functional.linear(y, function.apply(self.weight, [x]), self.bias)


def tied() -> nn.Module:
    first = Own()
    return nn.Sequential(first, nn.Tanh(), Own(first.weight), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


STAGES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "alone": (Own, False),
    "among layers": (lambda: nn.Sequential(Residual(), Own(), nn.GELU(), Own(), Residual()), False),
    "prepared weights": (lambda: nn.Sequential(Halved(), nn.Linear(WIDTH, WIDTH), Halved()), False),
    "tied weights": (tied, False),
    "two outputs": (Paired, False),
    "function of a weight alone": (lambda: nn.Sequential(nn.GELU(), Quantized(), nn.Tanh(), Quantized()), False),
    "reads the input in W": (lambda: nn.Sequential(ByInput(), Residual()), False),
    "reads the batch in W": (lambda: nn.Sequential(ByInput(), Residual()), True),
    "first": (lambda: nn.Sequential(Table(), Residual(), Own()), True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STAGES)
def test_functions_of_the_users_own_run_once(name: str, way: str) -> None:
    torch.manual_seed(0)
    make, first = STAGES[name]
    stage = make().double()
    values = [torch.randint(WIDTH, (2, 5)) if first else torch.randn(2, 5, WIDTH).double() for _ in range(2)]
    gradient = torch.randn(2, 5, WIDTH).double()
    leaves = [value if first else value.clone().requires_grad_() for value in values]
    Counted.runs = 0
    for leaf in leaves:
        stage(leaf).backward(gradient)
    runs, expected = Counted.runs, [leaf.grad for leaf in leaves] + gradients(stage)
    stage.zero_grad()
    Counted.runs = 0
    blocks = [StageBlock(stage, [value.requires_grad_(not first)], split=way != "BW") for value in values]
    given: list[torch.Tensor | None] = []
    for block in blocks:
        block.take()
        given += run_all(block, way, (gradient,))
    assert_equal([*given, *gradients(stage)], expected)
    assert Counted.runs == runs


def test_collectives_are_called_in_b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each layer, so that the ranks of a group call the same ones in the same order."""
    calls: list[str] = []
    phase = ""

    def collective(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(phase)
        return tensor

    monkeypatch.setattr(Counted, "collective", collective)
    stage = nn.Sequential(Own(), nn.Linear(WIDTH, WIDTH), Own())
    block = StageBlock(stage, [torch.randn(2, WIDTH).requires_grad_()], split=True)
    phase = "B"
    block.backward_input((torch.ones(2, WIDTH),))
    assert all(one is None for one in gradients(stage))  # what came for the weights is kept for W
    phase = "W"
    block.backward_weight()
    assert all(one is not None for one in gradients(stage))
    assert calls == ["B", "B"]


class Accumulating(nn.Module):
    def __init__(self, *, dummy: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.dummy = dummy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Fused
        result: torch.Tensor = function.apply(x, self.weight, self.dummy)
        return result


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dummy", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_main_grad(way: str, dummy: bool, recompute: bool) -> None:
    """A backward may add to `weight.main_grad` of the stage's own weight, and mark the weight."""
    torch.manual_seed(0)
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), Accumulating(dummy=dummy), nn.GELU(), Accumulating(dummy=dummy)).double()
    layers: list[Any] = [module.weight for module in stage if isinstance(module, Accumulating)]
    value, gradient = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 5, WIDTH).double()
    leaf = value.clone().requires_grad_()
    expected: list[torch.Tensor | None] = []
    for weight in layers:
        weight.main_grad = torch.zeros(WIDTH, WIDTH).double()
    for _ in range(2):
        stage(leaf).backward(gradient)
    expected = [weight.main_grad for weight in layers] + gradients(stage)
    stage.zero_grad()
    for weight in layers:
        weight.main_grad = torch.zeros(WIDTH, WIDTH).double()
        del weight.grad_added_to_main_grad
    for _ in range(2):
        block = StageBlock(
            stage, [value.clone().requires_grad_()], split=way != "BW", recompute=Buffers(stage) if recompute else None
        )
        block.take()
        run_all(block, way, (gradient,))
    assert_equal([weight.main_grad for weight in layers] + gradients(stage), expected)
    assert all(weight.grad_added_to_main_grad for weight in layers)


def _compiled(backend: str, *, among_layers: bool) -> tuple[nn.Module, nn.Module]:
    """A stage, and the same compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    stage = nn.Sequential(Residual(), nn.Tanh(), Residual()).double()
    compiled: Any = torch.compile(stage, backend=backend)
    if among_layers:
        before, after = nn.Linear(WIDTH, WIDTH).double(), nn.LayerNorm(WIDTH).double()
        stage, compiled = nn.Sequential(before, stage, after), nn.Sequential(before, compiled, after)
    return stage, compiled


def assert_compiled(stage: nn.Module, compiled: nn.Module, way: str) -> None:
    stage.zero_grad()
    gradient = torch.randn(2, 5, WIDTH).double()
    values = [torch.randn(2, 5, WIDTH).double() for _ in range(2)]
    leaves = [value.clone().requires_grad_() for value in values]
    for leaf in leaves:
        stage(leaf).backward(gradient)
    expected = [leaf.grad for leaf in leaves] + gradients(stage)
    stage.zero_grad()
    blocks = [StageBlock(compiled, [value.clone().requires_grad_()], split=way != "BW") for value in values]
    given: list[torch.Tensor | None] = []
    for block in blocks:
        block.take()
        given += run_all(block, way, (gradient,))
    assert_equal([*given, *gradients(stage)], expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, inside inductor
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo looks at it
def test_compiled_stages(backend: str) -> None:
    stages = _compiled(backend, among_layers=False)
    for way in WAYS:
        assert_compiled(*stages, way)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo looks at it
def test_compiled_layers_among_others() -> None:
    """Inductor lets a backward overwrite what it has saved, and refuses where the graph is kept, as B keeps it for W."""
    functorch: Any = torch._functorch
    with functorch.config.patch(donated_buffer=True):  # `load` turns it off where B and W are apart
        stages = _compiled("inductor", among_layers=True)
        assert_compiled(*stages, "BW")
        with pytest.raises(RuntimeError, match=r"set torch._functorch.config.donated_buffer=False"):
            assert_compiled(*stages, "B W")
    with functorch.config.patch(donated_buffer=False):
        assert_compiled(*_compiled("inductor", among_layers=True), "B W")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_the_backward_of_a_compiled_stage_runs_once() -> None:
    """B does all of it; what is left for W is to add up."""
    torch.compiler.reset()
    compiled: Any = torch.compile(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)), backend="aot_eager")
    block = StageBlock(compiled, [torch.randn(2, WIDTH).requires_grad_()], split=True)
    block.backward_input((torch.ones(2, WIDTH),))
    with torch.profiler.profile() as profile:
        block.backward_weight()
    assert not [event.key for event in profile.key_averages() if event.key in ("aten::mm", "aten::addmm")]
    assert all(one is not None for one in gradients(compiled))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_functions_add_up_in_a_wider_type(way: str) -> None:
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), Own(), Halved()).bfloat16()
    set_gradient_type([stage], torch.float32)
    for _ in range(2):
        block = StageBlock(stage, [torch.randn(2, 5, WIDTH).bfloat16().requires_grad_()], split=way != "BW")
        block.take()
        run_all(block, way, (torch.randn(2, 5, WIDTH).bfloat16(),))
    sums = [one for one in gradients(stage) if one is not None]
    assert [one.dtype for one in sums] == [torch.float32] * 6
    assert any(bool((one != one.bfloat16()).any()) for one in sums)


class Reusing(torch.autograd.Function):
    """Gives gradients in memory of its own that the next run uses again: the weight's, or the activation's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.memory = memory
        return x * weight

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        by_x, by_weight = given[0] * weight, (given[0] * x).sum((0, 1))
        of_x = ctx.memory.shape == by_x.shape
        ctx.memory.copy_(by_x if of_x else by_weight)
        return (ctx.memory, by_weight, None) if of_x else (by_x, ctx.memory, None)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("shape", [(WIDTH,), (2, 5, WIDTH)], ids=["weight", "activation"])
def test_gradients_that_change_between_b_and_w_are_refused(shape: tuple[int, ...], microbatches: int) -> None:
    """By another microbatch, or by another use in the same one."""
    memory, weights = torch.zeros(shape), [nn.Parameter(torch.randn(WIDTH)) for _ in range(2)]
    layers = [nn.Linear(WIDTH, WIDTH) for _ in weights]
    function: Any = Reusing

    def stage(x: torch.Tensor) -> Any:
        for layer, weight in list(zip(layers, weights, strict=True))[: 3 - microbatches]:
            x = function.apply(layer(x), weight * 1, memory)
        return x

    blocks = [StageBlock(stage, [torch.randn(2, 5, WIDTH).requires_grad_()], split=True) for _ in range(microbatches)]
    for block in blocks:
        block.take()
        block.backward_input((torch.randn(2, 5, WIDTH),))
    with pytest.raises(RuntimeError, match="has been changed in place before W"):
        for block in blocks:
            block.backward_weight()

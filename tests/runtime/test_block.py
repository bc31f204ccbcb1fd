"""B and W of one stage: exact gradients, real separation, and memory that goes when the plan says so."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WAYS, WIDTH, Attention, Residual, Watching, assert_equal, gradients, run_all
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from schedc.errors import InvalidInput
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.recompute import Buffers

if TYPE_CHECKING:
    from collections.abc import Callable


class Shared(nn.Module):
    """One weight used at two depths, once transposed, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight) @ self.weight.t() * self.scale + self.scale


class Made(nn.Module):
    """A weight that is computed from others, a frozen weight, and a bias of another shape than the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.length = nn.Parameter(torch.rand(WIDTH, 1))
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.length * self.direction / self.direction.norm(dim=1, keepdim=True)
        result: torch.Tensor = torch.sin(x * self.frozen + self.bias) @ weight
        return result


class Twice(torch.autograd.Function):
    """Doubles."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        doubled: torch.Tensor = x * 2
        return doubled

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (saved,) = ctx.saved_tensors
        doubled: torch.Tensor = gradients[0] * 2 + 0 * saved
        return doubled


class Doubling(nn.Module):
    """A function with a backward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Twice
        result: torch.Tensor = function.apply(self.inner(x))
        return result


class Ignoring(nn.Module):
    """An output that does not depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(x.shape).contiguous()


class Tokens(nn.Module):
    """Token and position embeddings, with a residual around something without weights before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, WIDTH)
        self.places = nn.Embedding(5, WIDTH)
        self.rest = nn.Sequential(Residual(), Attention())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.tokens(x) + self.places(torch.arange(x.shape[-1]))
        result: torch.Tensor = self.rest(embedded + torch.sin(embedded))
        return result


class Nested(nn.Module):
    """One operation on the input, a weight, and something made of the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.other(x), self.weight, torch.sin(self.weight)])
        return joined[:2] + joined[2:]


class Weight(nn.Module):
    """A stage that is its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 5, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight


class Views(nn.Module):
    """Parts of one weight used at two depths, an input used three times, and a frozen layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(torch.tanh(x @ self.weight[:WIDTH].t() + x))
        result: torch.Tensor = hidden @ self.weight[WIDTH:] * x
        return result


class InPlace(nn.Module):
    """Changes of activations in place: of a part that depends on a weight, and of all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        y[..., :2] *= self.scale[:2]
        y[..., 2:].add_(self.scale[2:] * x[..., 2:])
        y += self.scale
        return torch.tanh(y) * 0.5


class Checkpointed(nn.Module):
    """Layers that run their own forward again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Residual(), Doubling())
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):  # the same weights twice
            x = checkpoint(self.inner, x, use_reentrant=False)
        result: torch.Tensor = checkpoint(self.outer, x, use_reentrant=False)
        return result


class Region(nn.Module):
    """Checkpoints whose first node in B is no layer, and which read the stage's input beside their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def region(y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return nn.functional.gelu(self.layer(y) * mask * self.scale)

        y = checkpoint(region, torch.tanh(x), mask=x, use_reentrant=False)
        result: torch.Tensor = checkpoint(lambda z: torch.sin(z * self.scale + x), y, use_reentrant=False)
        return result


class Selective(Checkpointed):
    """Layers that run again but for their products, which are kept."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        products = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default])
        for layer in (self.inner, self.outer):
            x = checkpoint(layer, x, use_reentrant=False, context_fn=products)
        return x


class Empty(nn.Module):
    """A weight without elements, as of a table of no entries."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(0, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.weight.sum()
        return result


class Experts(nn.Module):
    """Each row goes to one of several layers; one of them gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gate = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.gate(x).softmax(-1)
        result = torch.zeros_like(x)
        for number in range(2):
            rows = torch.arange(5) % 2 == number
            result[:, rows] = self.experts[number](x[:, rows]) * weight[:, rows, number : number + 1]
        return result


MIDDLE: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: nn.Sequential(Residual(), Attention(), Residual()),
    "shared": Shared,
    "made": Made,
    "function": Doubling,
    "ignoring": Ignoring,
    "nested": Nested,
    "weight": Weight,
    "identity": nn.Identity,
    "no weights": nn.GELU,
    "in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)),
    "convolution": lambda: nn.Sequential(nn.Conv1d(5, 5, 3, padding=1), nn.BatchNorm1d(5), nn.ReLU()),
    "views": Views,
    "in place, parts": InPlace,
    "checkpointed": Checkpointed,
    "selective": Selective,
    "checkpoints that read the input": Region,
    "empty weight": Empty,
    "experts": Experts,
    "recurrent": lambda: First(nn.GRU(WIDTH, WIDTH, batch_first=True)),
}


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)[0]
        return result


def block_of(work: Callable[..., object], value: torch.Tensor, *, first: bool, split: bool, recompute: bool = False) -> StageBlock:
    """A block with one input, whose gradient is wanted but on a first stage."""
    return StageBlock(
        work, [value.detach().requires_grad_(not first)], split=split, recompute=Buffers(nn.Module()) if recompute else None
    )


def run(block: StageBlock, way: str, gradient: torch.Tensor) -> torch.Tensor | None:
    """The backward of a block with one input and one output; the input's gradient."""
    (given,) = run_all(block, way, (gradient,))
    return given


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MIDDLE)
def test_gradients_of_a_middle_stage(name: str, way: str, recompute: bool) -> None:
    torch.manual_seed(0)
    stage = MIDDLE[name]().double()
    value, gradient = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 5, WIDTH).double()
    leaf = value.clone().requires_grad_()
    output = stage(leaf)
    if output.requires_grad:
        output.backward(gradient)
    input_gradient = torch.zeros_like(value) if leaf.grad is None else leaf.grad
    expected = [input_gradient, *gradients(stage)]
    stage.zero_grad()
    block = block_of(stage, value, first=False, split=way != "BW", recompute=recompute)
    (given,) = block.take()
    torch.testing.assert_close(given, output)
    assert_equal([run(block, way, gradient), *gradients(stage)], expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("floats", [False, True])
def test_gradients_of_a_first_stage(way: str, floats: bool) -> None:
    torch.manual_seed(0)
    stage = (nn.Sequential(Residual(), Residual()) if floats else Tokens()).double()
    value = torch.randn(2, 5, WIDTH).double() if floats else torch.randint(10, (2, 5))
    gradient = torch.randn(2, 5, WIDTH).double()
    stage(value).backward(gradient)
    expected = gradients(stage)
    stage.zero_grad()
    block = block_of(stage, value, first=True, split=way != "BW")
    block.take()
    assert run(block, way, gradient) is None
    assert_equal(gradients(stage), expected)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_a_loss(way: str) -> None:
    torch.manual_seed(0)
    stage = Residual().double()
    value = torch.randn(2, 5, WIDTH).double()
    leaf = value.clone().requires_grad_()
    stage(leaf).square().mean().backward()
    expected = [leaf.grad, *gradients(stage)]
    stage.zero_grad()
    block = block_of(lambda x: stage(x).square().mean(), value, first=False, split=way != "BW")
    block.take()
    assert_equal([run(block, way, torch.ones((), dtype=torch.float64)), *gradients(stage)], expected)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_an_embedding_without_positions(way: str) -> None:
    """The look-up's result goes two ways at once: into the first norm and around it."""
    torch.manual_seed(0)
    stage = nn.Sequential(nn.Embedding(10, WIDTH), Residual(), Attention()).double()
    tokens, gradient = torch.randint(10, (2, 5)), torch.randn(2, 5, WIDTH).double()
    stage(tokens).backward(gradient)
    expected = gradients(stage)
    stage.zero_grad()
    block = StageBlock(stage, [tokens], split=way != "BW")
    block.take()
    if way != "BW":
        block.backward_input((gradient,))
        assert all(one is None for one in gradients(stage))
        for part in range(1 if way == "B W" else 3):
            block.backward_weight(*((part, (1, 2, 1)) if way != "B W" else ()))
    else:
        block.backward((gradient,))
    assert_equal(gradients(stage), expected)


@pytest.mark.parametrize("first", [False, True])
def test_b_leaves_the_weights_to_w(first: bool) -> None:
    """B touches no weight; W multiplies each activation once more, and no activation's gradient flows."""
    stage = Tokens() if first else nn.Sequential(Residual(), Attention(), Residual())
    value = torch.randint(10, (2, 5)) if first else torch.randn(2, 5, WIDTH)
    block = block_of(stage, value, first=first, split=True)
    gradient = torch.ones(2, 5, WIDTH)
    linears = [module for module in stage.modules() if isinstance(module, nn.Linear)]
    in_b = _matrix_products(lambda: block.backward_input((gradient,)))
    assert all(one is None for one in gradients(stage))
    in_w = _matrix_products(block.backward_weight)
    assert all(one is not None for one in gradients(stage))
    assert in_w == len(linears)
    assert in_b >= len(linears) - first


def _matrix_products(work: Callable[[], None]) -> int:
    with torch.profiler.profile() as profile:
        work()
    return sum(event.count for event in profile.key_averages() if event.key in ("aten::mm", "aten::addmm", "aten::bmm"))


def test_parts_of_w_share_the_weights() -> None:
    stage = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    block = block_of(stage, torch.randn(2, WIDTH), first=False, split=True)
    block.backward_input((torch.ones(2, WIDTH),))
    done = []
    for part in range(3):
        block.backward_weight(part, (1, 2, 1))
        done.append(sum(one is not None for one in gradients(stage)) // 2)
    assert done == [1, 3, 4]


@pytest.mark.parametrize("split", [False, True])
def test_memory_goes_when_the_plan_says(split: bool) -> None:
    """Without the garbage collector: no cycles keep anything."""
    layers = [nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Softmax(-1)]
    stage = Watching(layers)
    gc.disable()
    try:
        block = block_of(stage, torch.randn(2, WIDTH), first=False, split=split)
        block.take()
        assert stage.live() == [0, 1, 3, 4, 6, 7]  # the input, and all that an activation function gives
        if split:
            block.backward_input((torch.ones(2, WIDTH),))
            block.take()
            assert stage.live() == [1, 4]  # the inputs of the linear layers
            block.backward_weight(0, (1, 1))
            block.backward_weight(1, (1, 1))
        else:
            block.backward((torch.ones(2, WIDTH),))
            block.take()
        assert stage.live() == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("given", "found"), [({}, "dict"), ((), "an empty tuple"), ((torch.ones(2), None), "tuple with NoneType"), (None, "NoneType")]
)
def test_a_stage_must_give_tensors(given: Any, found: str) -> None:
    with pytest.raises(InvalidInput, match=f"what a stage gives must be a tensor or a tuple of tensors; found {found}$"):
        StageBlock(lambda x: given, [torch.randn(2)], split=False)


def test_a_change_in_place_after_the_forward_is_refused() -> None:
    seen = []

    def stage(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.tanh(x))
        return seen[0] * 1

    block = block_of(stage, torch.randn(2, WIDTH), first=False, split=True)
    seen[0].zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        block.backward_input((torch.ones(2, WIDTH),))


def test_a_checkpointed_region_runs_again_once_in_b_and_once_in_w() -> None:
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    runs = []

    def region(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        result: torch.Tensor = layers(x)
        return result

    def stage(x: torch.Tensor) -> Any:
        return checkpoint(region, x, use_reentrant=False)

    block = block_of(stage, torch.randn(2, WIDTH), first=False, split=True)
    counts = [len(runs)]
    block.backward_input((torch.ones(2, WIDTH),))
    counts.append(len(runs))
    block.backward_weight()
    assert [*counts, len(runs)] == [1, 2, 3]
    assert all(one is not None for one in gradients(layers))

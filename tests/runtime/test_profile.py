"""The profiler: what it counts, what it times, what it writes, and what it says to what it cannot use."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from schedc.analysis.comparison.times import SampledTimes
from schedc.errors import InvalidInput
from schedc.formats.profile_file import LayerEntry, profile_json
from schedc.frontend.job import load_job
from schedc.runtime.profiling import MeasuredLayer, Model, merged, profile_layer, profile_model, warnings
from schedc.runtime.profiling.meters import meter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CPU = torch.device("cpu")
TOKENS, WIDTH, LENGTH, SAMPLES = 11, 16, 6, 3
UNIT = SAMPLES * LENGTH * WIDTH * 4
"""The bytes of one activation."""


class Attention(nn.Module):
    """A block with branches: a norm, attention, a residual."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        result: torch.Tensor = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return result


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt(blocks: int = 3) -> Model:
    torch.manual_seed(0)
    tokens = torch.randint(TOKENS, (SAMPLES, LENGTH))
    return Model(
        layers=[
            ("embedding", nn.Embedding(TOKENS, WIDTH)),
            *((f"block.{index}", Attention()) for index in range(blocks)),
            ("head", nn.Linear(WIDTH, TOKENS)),
        ],
        inputs=tokens,
        targets=tokens,
        loss_fn=loss_fn,
        name="tiny",
    )


class Scale(nn.Module):
    """A layer whose output has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Slow(torch.autograd.Function):
    """A linear layer that computes the gradients of input and weight together, in 20 ticks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        Ticks.now_ns += 20
        return given[0] @ weight, given[0].flatten(0, 1).t() @ x.flatten(0, 1)


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = Slow
        result: torch.Tensor = function.apply(x, self.weight)
        return result


def profiled(layer: nn.Module, inputs: torch.Tensor | None = None, **more: Any) -> MeasuredLayer:
    """The layer, behind one that gives it its input."""
    inputs = torch.randn(SAMPLES, LENGTH, WIDTH) if inputs is None else inputs
    model = Model(layers=[("before", Scale()), ("layer", layer)], inputs=inputs)
    return profile_model(model, device=CPU, repeats=1, warmup=1, **more)[1]


def measured(name: str = "block", *, time_ns: int = 100, structure: str = "block", held: int = 8, repeat: int = 1) -> MeasuredLayer:
    times = SampledTimes((time_ns - 1, time_ns, time_ns + 1))
    return MeasuredLayer(
        name=name,
        repeat=repeat,
        forward=times,
        backward_input=times,
        backward_weight=times,
        backward=times,
        held_bytes=held,
        held_after_input_bytes=4,
        message_bytes=2,
        gradient_message_bytes=2,
        parameters=1,
        structure=structure,
    )


def test_every_phase_of_every_layer_is_timed() -> None:
    found = profile_model(gpt(), device=CPU, repeats=4, warmup=1)
    assert [layer.name for layer in found] == ["embedding", "block.0", "block.1", "block.2", "head"]
    for layer in found:
        for times in layer.phases().values():
            assert len(times.samples_ns) == 4
            assert min(times.samples_ns) > 0
    assert [layer.message_bytes for layer in found] == [UNIT, UNIT, UNIT, UNIT, None]
    assert [layer.parameters for layer in found] == [
        TOKENS * WIDTH,
        *[4 * WIDTH * (WIDTH + 1) + 2 * WIDTH] * 3,
        TOKENS * (WIDTH + 1),
    ]


class Ticks(torch.autograd.Function):
    """Takes so long forward and so long backward, on a clock of the test's own."""

    now_ns = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_ns: int, backward_ns: int) -> torch.Tensor:
        Ticks.now_ns += forward_ns
        ctx.backward_ns = backward_ns
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        Ticks.now_ns += ctx.backward_ns
        return gradients[0], None, None


class Ticking(nn.Module):
    """A layer whose activation takes 11 ns backward, and whose weight takes 13."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ticks = cast("Callable[..., torch.Tensor]", Ticks.apply)
        return ticks(x, 5, 11) * ticks(self.weight, 2, 13)


def test_each_phase_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedc.runtime.profiling.meters.time.perf_counter_ns", lambda: Ticks.now_ns)
    found = profiled(Ticking())
    assert {phase: times.median_ns for phase, times in found.phases().items()} == {
        "forward": 7,
        "backward_input": 11,
        "backward_weight": 13,
        "backward": 24,
    }


def test_activation_by_hand() -> None:
    """Two linear layers and a tanh: F holds their inputs, B leaves these and the gradients that W starts from."""
    found = profiled(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH)))
    assert found.held_bytes == UNIT + 4 * UNIT
    assert found.held_after_input_bytes == (UNIT + 4 * UNIT) + (4 * UNIT + UNIT)
    assert found.activation_bytes == found.held_after_input_bytes


def test_what_only_b_reads_is_not_held_after_it() -> None:
    found = profiled(nn.Sequential(nn.Sigmoid(), nn.Tanh(), nn.Sigmoid()))
    assert found.held_bytes == 4 * UNIT  # the input, though nothing reads it, is the block's until B
    assert found.held_after_input_bytes == 0


def test_a_first_layers_input_is_the_batchs() -> None:
    embedding = profile_model(gpt(), device=CPU, repeats=1, warmup=1)[0]
    assert embedding.held_bytes == 0
    assert embedding.held_after_input_bytes == UNIT  # the gradient of its output


@pytest.mark.parametrize("layer", [Attention(), nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU())])
def test_activation_is_what_autograd_saves(layer: nn.Module) -> None:
    """Counted another way: the storages that autograd packs, parameters left out."""
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.randn(SAMPLES, LENGTH, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = layer(x)
    for parameter in layer.parameters():
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    assert kept.requires_grad
    assert x.untyped_storage().data_ptr() in saved
    assert profiled(layer).held_bytes == sum(saved.values())


def test_the_meter_counts_storages_once_and_only_while_they_live() -> None:
    before = torch.zeros(1000)
    meter = meter_for(CPU)
    with meter:
        before.view(10, 100).add_(1)
        assert meter.held_bytes() == 0
        made = before + 1
        view = made[5:]
        del made
        assert meter.held_bytes() == 4000
        del view
        assert meter.held_bytes() == 0


def test_nothing_is_held_after_w() -> None:
    from schedc.runtime.profiling.layers import block_of

    layer, x = Attention(), torch.randn(SAMPLES, LENGTH, WIDTH)
    block_of(layer, (x,), split=False).backward((torch.ones_like(x),))
    meter = meter_for(CPU)
    with meter:
        block = block_of(layer, (x.clone().requires_grad_(),), split=True)
        (output,) = block.take()
        assert output is not None
        gradients = (torch.ones_like(output),)
        del output
        block.backward_input(gradients)
        block.take()
        del gradients
        assert meter.held_bytes() > 0
        block.backward_weight()
        del block
        assert meter.held_bytes() == 0


class Both(nn.Module):
    """A layer that takes and gives a tensor and a mask beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x) * mask.unsqueeze(-1), mask


def test_several_tensors_across_a_boundary() -> None:
    x, mask = torch.randn(SAMPLES, LENGTH, WIDTH), torch.ones(SAMPLES, LENGTH, dtype=torch.int64)
    model = Model(
        layers=[("a", Both()), ("b", Both()), ("c", Both())],
        inputs=(x, mask),
        targets=x,
        loss_fn=lambda outputs, targets: (outputs[0] - targets).square().mean(),
    )
    first, second, last = profile_model(model, device=CPU, repeats=1, warmup=1)
    mask_bytes = SAMPLES * LENGTH * 8
    for layer in (first, second):
        assert (layer.message_bytes, layer.gradient_message_bytes) == (UNIT + mask_bytes, UNIT)
    assert profile_layer(second).gradient_message_bytes == UNIT
    assert second.held_bytes == UNIT + mask_bytes  # the inputs: the linear layer's, and the mask, by which its output is multiplied
    assert last.message_bytes is None


def test_types() -> None:
    assert profiled(nn.Linear(WIDTH, WIDTH), dtype=torch.bfloat16).message_bytes == UNIT // 2
    under_autocast = profiled(nn.Linear(WIDTH, WIDTH), autocast=torch.bfloat16)
    assert under_autocast.message_bytes == UNIT // 2
    weights_cast = 2 * WIDTH * (WIDTH + 1)
    # Input and its cast; the weights' casts belong to the whole step and are not counted for a microbatch.
    assert under_autocast.held_bytes < UNIT + UNIT // 2 + weights_cast


@pytest.mark.slow
def test_a_models_layers_are_asked_for_one_by_one_and_let_go() -> None:
    alive: list[weakref.ref[nn.Module]] = []
    most = 0

    def layers() -> Iterator[tuple[str, nn.Module]]:
        nonlocal most
        for index in range(5):
            gc.collect()
            most = max(most, sum(layer() is not None for layer in alive))
            layer = nn.Linear(WIDTH, WIDTH)
            alive.append(weakref.ref(layer))
            yield f"layer.{index}", layer
            del layer

    found = profile_model(Model(layers=layers(), inputs=torch.randn(2, WIDTH)), device=CPU, repeats=1, warmup=1)
    assert len(found) == 5
    assert most <= 2


class Gives(nn.Module):
    """A layer that gives whatever it was made with."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.output = output

    def forward(self, x: torch.Tensor) -> object:
        return self.output


A_NUMBER: Any = 1
"""What type checkers would refuse."""


def gives_a_number(_output: Any, _targets: Any) -> Any:
    return 1.0


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Model(layers=[], inputs=torch.ones(2)), "the model has no layers"),
        (
            Model(layers=[("a", nn.Linear(2, 2))], inputs=A_NUMBER),
            "inputs of the model must be a tensor or a tuple of tensors; found int",
        ),
        (Model(layers=[("a", nn.Linear(3, 2))], inputs=torch.ones(2)), r"layer 'a' fails: RuntimeError: .* \(linear\.py, line"),
        (Model(layers=[("a", Gives([1]))], inputs=torch.ones(2)), "layer 'a'.*list"),
        (
            Model(layers=[("a", nn.Linear(2, 2))], inputs=torch.ones(2), loss_fn=lambda y, _: y),
            r"layer 'a': loss_fn gives a tensor of shape \[2\], expected a scalar tensor",
        ),
        (Model(layers=[("a", nn.Linear(2, 2))], inputs=torch.ones(2), loss_fn=gives_a_number), "loss_fn gives float"),
        (
            Model(layers=[("a", nn.Linear(2, 2))], inputs=torch.full((2,), torch.nan)),
            r"layer 'a': it gives NaN, in a tensor of shape \[2\]; expected inputs and weights as in training",
        ),
        (
            Model(layers=nn.Sequential(nn.Linear(2, 2)), inputs=torch.ones(2)),  # type: ignore[arg-type]
            r"layers\[0\] of the model: found Linear, expected a pair of a name and an nn.Module",
        ),
        (
            Model(layers=[("a", nn.Linear(2, 2)), (2, nn.Linear(2, 2))], inputs=torch.ones(2)),  # type: ignore[list-item]
            r"layers\[1\] of the model: found \(int, Linear\), expected",
        ),
        (Model(layers=A_NUMBER, inputs=torch.ones(2)), "layers of the model: found int, expected pairs of a name and an nn.Module"),
        (Model(layers=(1 / zero for zero in [0]), inputs=torch.ones(2)), r"layers of the model: ZeroDivisionError: .* \(.*, line"),  # type: ignore[misc]
        (
            Model(layers=[("a", nn.Linear(2, 2))], inputs=torch.ones(2, device="meta")),
            "inputs of the model: found a tensor on the meta device, expected one with values",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(model: Model, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected) as refused:
        profile_model(model, device=CPU, repeats=1, warmup=1)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_equal_layers_become_one_over_the_samples_of_all() -> None:
    found = profile_model(gpt(), device=CPU, repeats=3, warmup=1)
    together = merged(found)
    assert [(layer.name, layer.repeat) for layer in together] == [("embedding", 1), ("block.0 … block.2", 3), ("head", 1)]
    expected = [sample for layer in found[1:4] for sample in layer.forward.samples_ns]
    assert sorted(together[1].forward.samples_ns) == sorted(expected)


def test_layers_that_differ_stay_apart() -> None:
    layers = [measured("a"), measured("b", structure="other"), measured("c", structure="other", held=9), measured("d")]
    assert merged(layers) == tuple(layers)
    x = torch.randn(2, WIDTH)
    for one, other in [
        (nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)),
    ]:
        model = Model(layers=[("first", Scale()), ("one", one), ("other", other)], inputs=x)
        assert len(merged(profile_model(model, device=CPU, repeats=1, warmup=1))) == 3


def test_warnings() -> None:
    layers = [*(measured(name) for name in "abcde"), measured("f", time_ns=200), measured("g", structure="s", held=3)]
    assert [layer.repeat for layer in merged(layers)] == [6, 1]
    slow, grown = warnings(layers, merged(layers))
    assert slow.startswith("f: takes 200% of what a … f take")
    assert grown.startswith("g: more is held after B")
    noisy = MeasuredLayer(
        **{**{name: getattr(layers[0], name) for name in MeasuredLayer.__slots__}, "forward": SampledTimes((50, 100, 150))}
    )
    assert warnings([noisy], [noisy]) == ("a: forward spreads by 50% of its median; is the machine busy? Try more --repeats",)


def test_the_median_and_the_spread() -> None:
    assert SampledTimes((5,)).spread == 0
    times = SampledTimes((100, 90, 110, 1000, 105))
    assert times.median_ns == 105
    assert times.spread == pytest.approx(10 / 105)


def test_the_profile_says_durations_to_four_digits_and_keeps_the_order_of_sizes() -> None:
    layer = LayerEntry(
        name="a",
        forward_ns=4_123_456,
        backward_input_ns=0,
        backward_weight_ns=999_999,
        activation_bytes=(3 << 20) + 2,
        activation_after_input_bytes=(3 << 20) + 1,
        message_bytes=64 << 20,
    )
    (entry,) = json.loads(profile_json([layer], model="m"))["layers"]
    assert entry == {
        "name": "a",
        "forward": "4.123 ms",
        "backward_input": "0 ns",
        "backward_weight": "1 ms",
        "activation": "3 MiB",
        "activation_after_input": "3 MiB",
        "message": "64 MiB",
    }


def test_the_profile_says_how_far_the_samples_of_each_phase_spread(tmp_path: Path) -> None:
    noisy = replace(measured(), forward=SampledTimes((100, 110, 130)), backward=SampledTimes((90, 100, 100, 100)))
    (entry,) = json.loads(profile_json([profile_layer(noisy)]))["layers"]
    assert entry["spread"] == {"forward": 0.136, "backward_input": 0.01, "backward_weight": 0.01, "backward": 0.025}
    (tmp_path / "profile.json").write_text(profile_json([profile_layer(noisy)]))
    job = tmp_path / "job.toml"
    job.write_text('[pipeline]\nranks = 1\nmicrobatches = 1\n[profile]\npath = "profile.json"\n')
    load_job(job)
    (tmp_path / "profile.json").write_text(profile_json([profile_layer(noisy)]).replace("0.136", "-1"))
    with pytest.raises(InvalidInput, match=r"layers\[0\].spread.forward: found -1, expected"):
        load_job(job)


def test_the_layers_of_a_stage_give_its_costs() -> None:
    """The front end adds up what the profiler writes: nothing of it is lost on the way but digits."""
    layer = profile_layer(measured(repeat=3, held=4 << 20))
    assert (layer.repeat, layer.forward_ns, layer.backward_ns, layer.activation_bytes) == (3, 100, 100, 4 << 20)
    assert layer.parameters == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    model = gpt()
    device = torch.device("cuda")
    found, on_cpu = (profile_model(model, device=where, repeats=3, warmup=2) for where in (device, CPU))
    for gpu, cpu in zip(found, on_cpu, strict=True):
        assert gpu.message_bytes == cpu.message_bytes
        assert min(min(times.samples_ns) for times in gpu.phases().values()) > 0
        # The allocator rounds each tensor up to 512 bytes, and a GPU's attention saves other things than the CPU's.
        assert gpu.held_bytes <= 3 * cpu.held_bytes + 64 * 512
        assert gpu.held_after_input_bytes >= cpu.held_after_input_bytes / 3
    assert all(parameter.device.type == "cpu" for _, layer in model.layers for parameter in layer.parameters())


def test_a_function_of_the_users_own_is_timed_in_b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pipe runs it: once, with the gradient of the weight, which is held until W."""
    monkeypatch.setattr("schedc.runtime.profiling.meters.time.perf_counter_ns", lambda: Ticks.now_ns)
    layer = profiled(OwnFunction())
    assert (layer.backward_input.median_ns, layer.backward_weight.median_ns) == (20, 0)
    assert layer.held_after_input_bytes == WIDTH * WIDTH * 4

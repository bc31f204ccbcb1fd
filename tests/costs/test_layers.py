"""Costs of layers: FLOPs against identities, durations against a published one, sizes against sums by hand."""

from __future__ import annotations

import pytest

from schedc.costs.architecture import Attention, FeedForward, Mamba, Setting, block_parameters
from schedc.costs.devices import DEVICES
from schedc.costs.efficiency import ROOFLINE, operator_s, sustained
from schedc.costs.layers import architecture_named, known_models, layers_of, merged
from schedc.costs.operators.attention import attention_operators, quadratic_share, visible_pairs
from schedc.costs.operators.blocks import block_operators
from schedc.costs.operators.operator import matrix_product
from schedc.costs.operators.sublayers import feed_forward_operators, mamba_operators
from schedc.errors import Unsupported

H100 = DEVICES["h100"]
MIB = 2**20


def test_crosspipes_forward_of_a_405b_stage() -> None:
    """CrossPipe, 5.2 and appendix E: 109 ms for one of 16 stages, at 500 TFLOPS, tensor parallel size 8 and 8,192 tokens.

    Embedding and head count as layers there, so a stage has 8 of 128. The roofline's own constants come to the same within 5 %.
    """
    setting = Setting(sequence_length=8192, tensor_parallel=8)
    for efficiency in (sustained(500e12 / H100.flops_per_s), ROOFLINE):
        layers = layers_of(architecture_named("llama3-405b"), H100, setting, efficiency)
        stage_ns = 8 * layers[1].forward_ns
        assert stage_ns == pytest.approx(109e6, rel=0.05)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen2.5-72b", "gpt3-175b", "gemma2-9b"])
def test_dense_blocks_take_six_flops_for_each_parameter_and_token(name: str) -> None:
    """2 in F, 2 in B, 2 in W, for all parameters but norms and biases; besides, attention's own products."""
    architecture, setting = architecture_named(name), Setting(sequence_length=512, microbatch_size=3)
    operators = block_operators(architecture.blocks[0], architecture, setting)
    flops = [
        sum(work.flops for operator in operators if operator.name != "attention" for work in [getattr(operator, phase)])
        for phase in ("forward", "backward_input", "backward_weight")
    ]
    count = block_parameters(architecture.blocks[0], architecture)
    assert flops == [pytest.approx(2 * count * 3 * 512, rel=1e-3)] * 3


@pytest.mark.parametrize(("length", "window"), [(1, None), (7, None), (7, 3), (7, 7), (7, 20), (64, 1)])
def test_visible_pairs_are_those_of_the_mask(length: int, window: int | None) -> None:
    seen = sum(
        1 for row in range(length) for column in range(length) if column <= row and (window is None or row - column < window)
    )
    assert visible_pairs(length, window) == seen


def test_memory_of_a_llama_block_by_hand() -> None:
    """Llama 3 8B, 4,096 tokens: a unit is 4,096 × 4,096 × 2 B = 32 MiB.

    F keeps inputs and outputs of two norms (4), queries, keys and values (1.5), attention's output (1), gate, up and their product
    (3 × 3.5): 17 units, and 4 B for each token and head. W needs the norms' outputs, attention's output and the product
    (2 + 1 + 3.5), and the gradients of what the four projections give (1.5 + 1 + 7 + 1): 17 units.
    """
    block = layers_of(architecture_named("llama3-8b"), H100, Setting(sequence_length=4096))[1]
    assert block.activation_after_input_bytes == 17 * 32 * MIB
    assert block.activation_bytes == 17 * 32 * MIB + 4 * 4096 * 32


@pytest.mark.parametrize("tensor_parallel", [1, 8])
def test_memory_of_a_gpt_block_is_the_published_formula(tensor_parallel: int) -> None:
    """Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 4.1 and 4.2.

    With sequence parallelism a layer keeps s × b × h × (34 + 5 a s / h) / t bytes. Two of the 34 are masks of dropout, which is not
    modelled. 5 a s / h are scores: without fusion 2 of them are kept here, as the rest is dropout's; with it, 4 bytes for each
    token and head.
    """
    gpt, tokens, hidden, heads = architecture_named("gpt3-175b"), 2048 * 4, 12288, 96
    for fused in (True, False):
        setting = Setting(sequence_length=2048, microbatch_size=4, tensor_parallel=tensor_parallel, fused_attention=fused)
        block = layers_of(gpt, H100, setting, split_backward=False)[1]
        of_scores = 4 * tokens * heads if fused else 2 * tokens * heads * 2048
        assert block.activation_bytes == (32 * tokens * hidden + of_scores) // tensor_parallel


def test_selective_recomputation_keeps_less_and_takes_longer() -> None:
    """Without the norms' outputs (2 units) and the product (3.5): 5.5 of 17 units less where nothing is kept for W."""
    llama, full = architecture_named("llama3-8b"), Setting(sequence_length=4096)
    kept = layers_of(llama, H100, full, split_backward=False)[1]
    again = layers_of(llama, H100, Setting(sequence_length=4096, selective_recompute=True), split_backward=False)[1]
    assert (kept.activation_bytes or 0) - (again.activation_bytes or 0) == 11 * 16 * MIB
    assert again.is_fused and again.activation_after_input_bytes is None
    assert again.whole_ns > kept.whole_ns
    assert again.forward_ns == kept.forward_ns


@pytest.mark.parametrize("name", known_models())
def test_no_layer_holds_more_after_b_than_before(name: str) -> None:
    for layer in layers_of(architecture_named(name), H100, Setting(sequence_length=256)):
        assert 0 <= (layer.activation_after_input_bytes or 0) <= (layer.activation_bytes or 0)
        assert layer.forward_ns > 0 and layer.whole_ns > 0


def test_division_divides_work() -> None:
    """At one share of the peak for everything, a group of n devices takes an n-th."""
    llama = architecture_named("llama3-70b")
    one = layers_of(llama, H100, Setting(sequence_length=4096), sustained(0.5))[1]
    for setting in (
        Setting(sequence_length=4096, tensor_parallel=8),
        Setting(sequence_length=4096, context_parallel=8),
        Setting(sequence_length=4096, context_parallel=4, tensor_parallel=2),
    ):
        part = layers_of(llama, H100, setting, sustained(0.5))[1]
        assert part.forward_ns == pytest.approx(one.forward_ns / 8, rel=1e-6)
        assert part.parts_ns == pytest.approx([each / 8 for each in one.parts_ns], rel=1e-6)
        assert part.activation_bytes == pytest.approx((one.activation_bytes or 0) / 8, rel=0.05)
        assert part.message_bytes == (one.message_bytes or 0) // 8


def test_collectives_take_time() -> None:
    """By hand: four gathers and scatters of 7/8 × 8,192 × 16,384 × 2 B in F, at 450 GB/s × 0.75, and 20 µs each."""
    llama, setting = architecture_named("llama3-405b"), Setting(sequence_length=8192, tensor_parallel=8)
    operators = block_operators(llama.blocks[0], llama, setting)
    sent = [operator.forward.link_bytes for operator in operators if operator.name in ("gather", "scatter")]
    assert sent == [7 / 8 * 8192 * 16384 * 2] * 4
    faster = layers_of(llama, H100, setting, sustained(1.0))[1].forward_ns
    assert layers_of(llama, H100, setting)[1].forward_ns > faster + sum(sent) / (450e9 * 0.75) * 1e9


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        (
            "llama3-8b",
            Setting(sequence_length=4096, tensor_parallel=3),
            "size 3 does not divide 4096 tokens",
        ),
        ("llama3-8b", Setting(sequence_length=4096, tensor_parallel=64), "tensor parallel size 64 does not divide 32 heads"),
        ("qwen2.5-7b", Setting(sequence_length=4096, tensor_parallel=8), "tensor parallel size 8 does not divide 28 heads"),
        ("mixtral-8x7b", Setting(sequence_length=4096, expert_parallel=3), "expert parallel size 3 does not divide 8 experts"),
        (
            "gpt3-175b",
            Setting(sequence_length=4096),
            "a sequence of 4096 tokens is longer than the model's 2048 position embeddings",
        ),
        ("llama3-8b", Setting(sequence_length=10**12), "the microbatch is too large: block 0 takes or holds more than"),
        ("llama3-8b", Setting(sequence_length=4096, expert_parallel=4), "expert parallel size 4: llama3-8b has no experts"),
        ("llama3-8b", Setting(sequence_length=4096, expert_tensor_parallel=4), "expert tensor parallel size 4: .* no experts"),
        ("nemotron-h-8b", Setting(sequence_length=4096, context_parallel=2), "context parallelism of Mamba layers is not modelled"),
    ],
)
def test_what_cannot_be_divided_is_refused(name: str, setting: Setting, expected: str) -> None:
    with pytest.raises(Unsupported, match=expected):
        layers_of(architecture_named(name), H100, setting)


@pytest.mark.parametrize(("kv_heads", "held"), [(1, 1), (2, 1), (4, 1), (12, 3)])
def test_heads_of_keys_that_are_fewer_than_devices_are_held_more_than_once(kv_heads: int, held: int) -> None:
    """Each device has those that its own queries need."""
    setting = Setting(sequence_length=64, tensor_parallel=4)
    (projection, *_) = attention_operators(Attention(heads=12, kv_heads=kv_heads, head_dim=8), 96, setting)
    assert projection.parameters == 96 * 8 * (3 + 2 * held)


@pytest.mark.parametrize("kv_heads", [3, 6])
def test_heads_of_keys_that_would_be_cut_are_refused(kv_heads: int) -> None:
    with pytest.raises(Unsupported, match=f"size 4 does not divide {kv_heads} heads of keys, nor they it"):
        attention_operators(Attention(heads=12, kv_heads=kv_heads, head_dim=8), 96, Setting(sequence_length=64, tensor_parallel=4))


def test_tokens_of_experts_go_through_the_network_and_are_gathered_within_the_node() -> None:
    """8 × 8 devices: the exchange takes the network; the tensor-parallel group of 8 still its own links."""
    mixtral = architecture_named("mixtral-8x22b")
    setting = Setting(sequence_length=4096, tensor_parallel=8, expert_parallel=8, node=8)
    operators = block_operators(mixtral.blocks[0], mixtral, setting)
    spans = {operator.name: operator.forward.spans for operator in operators if operator.forward.link_bytes}
    assert spans == {"gather": 8, "scatter": 8, "all-to-all": 64}
    dispatch = next(operator for operator in operators if operator.name == "all-to-all")
    copies = 4096 / 8 * 2 * 6144
    assert dispatch.forward.link_bytes == dispatch.forward.network_bytes == copies * 2 * 7 / 8
    assert not any(operator.forward.network_bytes for operator in operators if operator.name in ("gather", "scatter"))
    assert operator_s(dispatch, "forward", H100, ROOFLINE) > dispatch.forward.link_bytes / (50e9 * 0.75)


def test_equal_layers_in_a_row_are_merged() -> None:
    layers = layers_of(architecture_named("gemma3-12b"), H100, Setting(sequence_length=2048))
    short = merged(layers)
    assert [(layer.name, layer.repeat) for layer in short[:4]] == [
        ("embedding", 1),
        ("blocks 0 to 4", 5),
        ("block 5", 1),
        ("blocks 6 to 10", 5),
    ]
    assert sum(layer.repeat for layer in short) == len(layers) == 50


def test_bytes_that_projections_and_activations_move_by_hand() -> None:
    """Two bytes an element: what comes in, all the matrices, what goes out; a gated activation reads gate and up and writes one."""
    setting = Setting(sequence_length=7)
    projection = matrix_product("projection", setting, 3, 5, matrices=2)
    assert projection.forward.memory_bytes == 2 * (7 * 3 + 2 * 3 * 5 + 7 * 5)
    for gated, tensors in ((True, (3, 5)), (False, (2, 3))):
        (activation,) = (
            operator
            for operator in feed_forward_operators(FeedForward(width=11, gated=gated), 3, setting)
            if operator.name == "activation"
        )
        found = (activation.forward.memory_bytes, activation.backward_input.memory_bytes)
        assert found == tuple(2 * 7 * 11 * count for count in tensors)


def test_bytes_that_a_scan_moves_by_hand() -> None:
    """24 tokens in chunks of 8: inputs of 4 × 6 + 2 × 2 × 10 elements and outputs of 4 × 6, of 2 B; and the states of 3 chunks.

    F writes and reads them within the chunks, and again from one to the next: four times 4 × 6 × 10 elements of 4 B.
    """
    operators = mamba_operators(Mamba(heads=4, head_dim=6, state=10, groups=2, chunk=8), 32, Setting(sequence_length=24))
    (scan,) = (operator for operator in operators if operator.name == "scan")
    assert scan.forward.memory_bytes == 24 * (24 + 40) * 2 + 24 * 24 * 2 + 4 * 3 * (4 * 6 * 10) * 4
    assert scan.kept_for_input_bytes == 24 * (24 + 40) * 2


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "llama3-405b"])
def test_shares_that_are_quadratic_predict_a_sequence_of_twice_the_length(name: str) -> None:
    """A block of d ns, q of it quadratic, takes 2(1 − q)d + 4qd."""
    once, twice = (layers_of(architecture_named(name), H100, Setting(sequence_length=length)) for length in (32_768, 65_536))
    for layer, longer in zip(once[1:-1], twice[1:-1], strict=True):
        assert layer.quadratic is not None
        for duration, share in (("forward_ns", "forward"), ("backward_input_ns", "backward_input"), ("backward_weight_ns", "")):
            q = getattr(layer.quadratic, share, 0.0)
            assert getattr(longer, duration) == pytest.approx(getattr(layer, duration) * (2 * (1 - q) + 4 * q), rel=0.005)
        assert longer.state_gradient_bytes == 2 * (layer.state_gradient_bytes or 0) > 0


@pytest.mark.parametrize(
    ("name", "length", "nearest"),
    [
        ("llama3-8b", 8192, 0.001),
        ("gemma2-27b", 8192, 0.04),  # every second window is half of the sequence
        ("gemma2-27b", 32768, 0.04),
        ("gemma3-12b", 32768, 0.04),
        ("llama4-scout", 32768, 0.06),  # chunks of 8,192
        ("nemotron-h-8b", 16384, 0.001),  # a scan is linear
        ("deepseek-v3-671b", 8192, 0.001),
    ],
)
@pytest.mark.parametrize("cuts", [(1, 1), (1, 1, 1, 1), (4, 2, 1, 1), (1, 7)])
def test_slices_have_the_flops_of_the_operators_together_and_nearly_each(
    name: str, length: int, nearest: float, cuts: tuple[int, ...]
) -> None:
    """A slice of x tokens behind L others has what the operators of L + x tokens compute beyond those of L.

    Of all it is the sum; of each it is as near as a quadratic function is to a window, in parts of a mean slice.
    """
    architecture = architecture_named(name)
    ends = [length * sum(cuts[: at + 1]) // sum(cuts) for at in range(len(cuts))]
    for block in dict.fromkeys(architecture.blocks):
        whole = block_operators(block, architecture, Setting(sequence_length=length))
        by_end = [
            sum(operator.forward.flops for operator in block_operators(block, architecture, Setting(sequence_length=end)))
            for end in ends
        ]
        begin, predicted = 0, []
        for end in ends:
            linear, square = (end - begin) / length, (end**2 - begin**2) / length**2
            predicted.append(sum(each.forward.flops * ((1 - each.quadratic) * linear + each.quadratic * square) for each in whole))
            begin = end
        assert sum(predicted) == pytest.approx(by_end[-1], rel=1e-12)
        own = [end - before for before, end in zip([0.0, *by_end], by_end, strict=False)]
        assert predicted == pytest.approx(own, abs=nearest * by_end[-1] / len(cuts))


def test_a_window_as_long_as_the_sequence_is_quadratic_and_a_short_one_is_not() -> None:
    """Of half of the sequence 2/3, by the integrals of least squares."""
    assert [round(quadratic_share(4096, window), 2) for window in (None, 4096, 4095, 2048, 64, 1)] == [1, 1, 1, 0.67, 0.02, 0]


def test_the_state_of_a_scan_does_not_grow_with_the_sequence() -> None:
    """128 heads of 64 × 128 numbers of 4 B; of windows and of the whole sequence, all keys and values."""
    layers = layers_of(architecture_named("nemotron-h-8b"), H100, Setting(sequence_length=4096))
    states = {layer.kind: layer.state_gradient_bytes for layer in layers if layer.kind not in ("embedding", "head")}
    assert states == {"mamba": 4 * 2**20, "feed-forward": None, "attention": 4096 * 2 * 8 * 128 * 2}


def test_gradients_of_the_state_by_hand() -> None:
    """Keys and values of 8 heads of 128 elements of 2 bytes, for each token."""
    block = layers_of(architecture_named("llama3-8b"), H100, Setting(sequence_length=1000))[1]
    assert block.state_gradient_bytes == 1000 * 2 * 8 * 128 * 2

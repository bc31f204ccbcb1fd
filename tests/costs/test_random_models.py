"""Random small models: what their operators hold and compute, against counts from dimensions alone."""

from __future__ import annotations

from hypothesis import given, strategies as st

from schedc.costs.architecture import (
    Architecture,
    Attention,
    Block,
    Experts,
    FeedForward,
    LatentAttention,
    Mamba,
    Setting,
    Sublayer,
    block_parameters,
    further_token_parameters,
    parameters,
)
from schedc.costs.devices import DEVICES
from schedc.costs.layers import layers_of
from schedc.costs.operators.blocks import block_operators

SMALL = st.integers(1, 5)
FLAG = st.booleans()
SUBLAYERS: tuple[st.SearchStrategy[Sublayer], ...] = (
    st.builds(
        lambda groups, kv_heads, **others: Attention(heads=groups * kv_heads, kv_heads=kv_heads, **others),
        groups=SMALL,
        kv_heads=SMALL,
        head_dim=SMALL,
        window=st.none() | SMALL,
        input_bias=FLAG,
        output_bias=FLAG,
        head_norms=FLAG,
        rotary=FLAG,
    ),
    st.builds(
        LatentAttention,
        heads=SMALL,
        query_rank=st.none() | SMALL,
        kv_rank=SMALL,
        plain_dim=SMALL,
        rotary_dim=SMALL,
        value_dim=SMALL,
    ),
    st.builds(FeedForward, width=SMALL, gated=FLAG, bias=FLAG),
    st.builds(Experts, count=SMALL, chosen=SMALL, width=SMALL, shared_width=st.integers(0, 5), router_bias=FLAG),
    st.builds(Mamba, heads=SMALL, head_dim=SMALL, state=SMALL, groups=SMALL, convolution=SMALL, chunk=SMALL),
)
BLOCKS = st.builds(Block, st.lists(st.one_of(SUBLAYERS), min_size=1, max_size=3).map(tuple), FLAG)
ARCHITECTURES = st.builds(
    Architecture,
    name=st.just("random"),
    hidden=st.integers(1, 20),
    vocabulary=st.integers(1, 50),
    blocks=st.lists(BLOCKS, min_size=1, max_size=4).map(tuple),
    further_tokens=st.lists(BLOCKS, max_size=1).map(tuple),
    tied=FLAG,
    positions=st.sampled_from((0, 16)),
    norm_bias=FLAG,
)
SETTINGS = st.builds(
    Setting, microbatch_size=SMALL, sequence_length=st.integers(1, 16), fused_attention=FLAG, selective_recompute=FLAG
)


@given(ARCHITECTURES, SETTINGS)
def test_layers_hold_the_parameters_of_the_model(architecture: Architecture, setting: Setting) -> None:
    layers = layers_of(architecture, DEVICES["a100"], setting)
    shared = architecture.vocabulary * architecture.hidden if architecture.tied or architecture.further_tokens else 0
    held = sum(layer.parameters or 0 for layer in layers)
    assert held == parameters(architecture) + further_token_parameters(architecture) + shared


@given(BLOCKS, SETTINGS)
def test_a_matrix_takes_as_many_flops_in_w_as_in_f(block: Block, setting: Setting) -> None:
    """At least two for each parameter that is not of a norm, a bias or a convolution, where each token meets it."""
    architecture = Architecture(name="random", hidden=12, vocabulary=5, blocks=(block,))
    operators = block_operators(block, architecture, setting)
    in_weights = sum(operator.backward_weight.flops for operator in operators)
    assert in_weights == sum(operator.forward.flops for operator in operators if operator.backward_weight.flops)
    if not any(isinstance(sublayer, Experts) for sublayer in block.sublayers):
        assert in_weights <= 2 * setting.tokens * block_parameters(block, architecture)


@given(ARCHITECTURES, SETTINGS, FLAG)
def test_no_layer_holds_more_after_b_and_longer_takes_more(architecture: Architecture, setting: Setting, split: bool) -> None:
    layers = layers_of(architecture, DEVICES["h100"], setting, split_backward=split)
    for layer in layers:
        assert 0 <= (layer.activation_after_input_bytes or 0) <= (layer.activation_bytes or 0)
        assert bool(layer.activation_after_input_bytes) is split
    twice = Setting(
        microbatch_size=2 * setting.microbatch_size,
        sequence_length=setting.sequence_length,
        fused_attention=setting.fused_attention,
        selective_recompute=setting.selective_recompute,
    )
    for layer, more in zip(layers, layers_of(architecture, DEVICES["h100"], twice, split_backward=split), strict=True):
        assert layer.forward_ns <= more.forward_ns
        assert layer.parts_ns[0] <= more.parts_ns[0]
        assert 2 * (layer.activation_bytes or 0) - 1 <= (more.activation_bytes or 0) <= 2 * (layer.activation_bytes or 0) + 1

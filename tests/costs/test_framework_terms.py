"""Operators as Megatron-LM and Transformer Engine run them, what a backward works with, and tables of devices: counts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import pytest

from schedc.costs.architecture import (
    Architecture,
    Attention,
    Block,
    ContextExchange as Exchange,
    Experts,
    FeedForward,
    Framework,
    LatentAttention,
    Setting,
)
from schedc.costs.devices import DEVICES
from schedc.costs.efficiency import PHASES, ROOFLINE, efficiency_of, operator_s
from schedc.costs.layers import architecture_named, parts_of
from schedc.costs.memory import besides
from schedc.costs.operators.attention import attention_operators, latent_attention_operators
from schedc.costs.operators.blocks import embedding_operators, head_operators
from schedc.costs.operators.operator import CollectiveKind, Engine, Operator, OperatorWork, ProductShape
from schedc.costs.operators.sublayers import experts_operators, feed_forward_operators
from schedc.costs.predicted import predicted
from schedc.errors import InvalidInput, Unsupported

MEGATRON = Framework.MEGATRON_TE
LLAMA = Attention(heads=16, kv_heads=4, head_dim=32)


def named(operators: list[Operator], name: str) -> Operator:
    """The one of that name."""
    (found,) = [each for each in operators if each.name == name]
    return found


def test_a_backward_of_latent_attention_has_three_products_of_keys_and_two_of_values() -> None:
    """Scores again and the gradients of queries and keys; the gradients of values and of probabilities."""
    latent = LatentAttention(heads=2, query_rank=None, kv_rank=8, plain_dim=128, rotary_dim=64, value_dim=128)
    core = named(latent_attention_operators(latent, 64, Setting(sequence_length=10)), "attention")
    pairs = 2 * 10 * 11 / 2
    assert core.forward.flops == 2 * pairs * (192 + 128)
    assert core.backward_input.flops == 2 * pairs * (3 * 192 + 2 * 128)
    plain = named(attention_operators(LLAMA, 64, Setting(sequence_length=10)), "attention")
    assert plain.backward_input.flops == 2.5 * plain.forward.flops


def test_heads_are_exchanged_or_keys_go_round() -> None:
    """4 devices: a ring has 3 messages; all-to-all sends 3/4 of queries, keys, values and output, each way."""
    setting = Setting(sequence_length=64, context_parallel=4)
    ring = named(attention_operators(LLAMA, 64, setting), "attention")
    tokens, size = 16, 2
    assert (ring.forward.collectives, ring.forward.overlapped) == (3, True)
    assert ring.forward.link_bytes == 3 * tokens * 2 * 4 * 32 * size
    operators = attention_operators(LLAMA, 64, replace(setting, context_exchange=Exchange.ALL_TO_ALL))
    sent = named(operators, "attention")
    touched = tokens * (16 + 2 * 4 + 16) * 32 * size
    assert (sent.forward.collectives, sent.forward.collective, sent.forward.overlapped) == (4, CollectiveKind.EXCHANGE, False)
    assert sent.forward.link_bytes == sent.backward_input.link_bytes == touched * 3 / 4
    assert sent.forward.flops == ring.forward.flops
    assert sent.shape == ProductShape(4, 64, 32, 32), "all tokens of a quarter of the heads"
    assert sent.kept_for_input_bytes == ring.kept_for_input_bytes + tokens * 16 * 32 * size, "the output twice"
    assert named(operators, "reorder").forward.memory_bytes == 4 * touched
    with pytest.raises(Unsupported, match="context parallel size 8 does not divide the 16 heads and 4 heads of keys"):
        attention_operators(LLAMA, 64, Setting(sequence_length=64, context_parallel=8, context_exchange=Exchange.ALL_TO_ALL))


def test_weights_gather_their_input_again() -> None:
    """Each of 4 devices keeps a quarter of the tokens and gets the other three."""
    operators = feed_forward_operators(FeedForward(width=256, gated=True), 64, Setting(sequence_length=32, tensor_parallel=4))
    up = named(operators, "up").backward_weight
    assert (up.link_bytes, up.collectives, up.spans) == (3 * 8 * 64 * 2, 1, 4)
    assert named(operators, "down").backward_weight.collectives == 0, "its input is divided by elements"
    alone = feed_forward_operators(FeedForward(width=256, gated=True), 64, Setting(sequence_length=32))
    assert named(alone, "up").backward_weight.link_bytes == 0


def test_ends_of_llama_as_megatron_pads_and_fuses_them() -> None:
    """128,256 rows are 32,064 on each of 4 devices; with padding to 4 × 128 they are 32,128."""
    llama = architecture_named("llama3-70b")
    plain, padded = (Setting(sequence_length=4096, tensor_parallel=4, framework=each) for each in (Framework.PLAIN, MEGATRON))
    assert (plain.rows(128256), padded.rows(128256), padded.rows(128512)) == (32064, 32128, 32128)
    (embedding, _) = embedding_operators(llama, padded)
    weights, moved = 32128 * 8192, 4096 * 8192
    assert embedding.parameters == weights
    # Zeros written and the gradient read, in 2 bytes; the sum read and written, in 4.
    assert embedding.backward_weight.memory_bytes == 12 * weights + 4 * moved
    logits = 4096 * 32128
    loss = named(head_operators(llama, padded), "loss")
    assert (loss.kept_for_input_bytes, loss.forward.memory_bytes, loss.backward_input.memory_bytes) == (
        2 * logits,
        6 * logits,
        4 * logits,
    )
    assert named(head_operators(llama, plain), "loss").kept_for_input_bytes == 4 * 4096 * 32064


@pytest.mark.parametrize(("etp", "width", "pairs"), [(None, 16, 4 * 8 * 2), (1, 64, 8 * 2)])
def test_experts_over_a_tensor_group_or_whole(etp: int | None, width: int, pairs: int) -> None:
    """4 devices share 32 tokens, each of which takes 2 of 8 experts; without a tensor group a device has whole experts."""
    setting = Setting(sequence_length=32, tensor_parallel=4, expert_parallel=4, expert_tensor_parallel=etp)
    operators = experts_operators(Experts(count=8, chosen=2, width=64), 16, setting)
    up = named(operators, "experts up")
    assert up.engine is Engine.GROUPED and up.shape == ProductShape(2, pairs / 2, 16, 2 * width)
    assert up.forward.flops == 2 * pairs * 16 * 2 * width
    assert up.parameters == 2 * 16 * 2 * width
    assert len([each for each in operators if each.name == "gather"]) == (0 if etp == 1 else 1)
    assert len([each for each in operators if each.name == "sort"]) == 2, "two experts on a device"
    alone = Setting(sequence_length=32, expert_parallel=8)
    assert not [each for each in experts_operators(Experts(count=8, chosen=2, width=64), 16, alone) if each.name == "sort"]


def test_what_a_backward_works_with_by_hand() -> None:
    """One plain block and a head, 8 tokens, elements of 2 bytes: the peak is in the head, or in the block."""
    block = Block((FeedForward(width=64, gated=False),))
    for vocabulary in (16, 1024):
        model = Architecture(name="", hidden=16, vocabulary=vocabulary, blocks=(block,))
        setting = Setting(sequence_length=8)
        found = besides(parts_of(model, setting), setting, 16, split_backward=False)
        of_loss, logits = vocabulary * 8 * (2 + 4), vocabulary * 8 * 4
        # While the head's product runs, what the loss kept is gone: gradients of logits and of its input.
        of_head = max(of_loss, 8 * 2 * (vocabulary + 16) - logits)
        after = logits + 2 * (8 * 16 * 2)  # the head's norm and product
        # The activation function: its input is kept, its output was; both gradients, and that of the residual stream.
        of_block = 2 * 8 * 64 * 2 + 8 * 16 * 2 - after - 8 * 64 * 2
        assert found.working_bytes == max(of_head, of_block)
        assert found.buffers_bytes == 0
        assert found.moment == "backward of loss, head"
    only = besides(parts_of(model, setting)[1:2], setting, 16, split_backward=False)
    assert only.working_bytes == max(2 * 8 * 64 * 2 - 8 * 64 * 2, 8 * (64 + 16) * 2) + 8 * 16 * 2


def test_one_empty_gradient_for_each_shape_of_a_weight_stays() -> None:
    """Transformer Engine's; Llama's block has four shapes, however many blocks there are."""
    llama = architecture_named("llama3-8b")
    shapes = 4096 * 6144 + 4096 * 4096 + 4096 * 28672 + 14336 * 4096
    for framework, expected in ((MEGATRON, 2 * shapes), (Framework.PLAIN, 0)):
        setting = Setting(sequence_length=128, framework=framework)
        parts = parts_of(llama, setting)
        assert besides(parts, setting, 4096, split_backward=False).buffers_bytes == expected
        assert besides(parts[1:2], setting, 4096, split_backward=False).buffers_bytes == expected


def test_shares_of_a_devices_table() -> None:
    rates = efficiency_of("b200")
    assert efficiency_of("h100") == ROOFLINE != rates
    table = json.loads(resources.files("schedc.costs").joinpath("operators-b200.json").read_text(encoding="utf-8"))
    assert (table["format"], table["version"]) == ("schedc.operators", 1) and "SimuMax" in table["source"]
    assert {(engine, phase) for engine, phase, *_ in table["shares"]} == {
        *((engine, phase) for engine in ("matrix", "grouped") for phase in PHASES),
        *(("attention", phase) for phase in PHASES[:2]),
    }
    for engine, phase, *shape, share in table["shares"]:
        assert 0 < share < 0.75
        near = [row[-1] for row in table["shares"] if row[:2] == [engine, phase]]
        assert min(near) <= rates.product(Engine(engine), phase, ProductShape(*shape)) / rates.sustained <= max(near)
    large = Operator(name="", shape=ProductShape(1, 4096, 8192, 57344), forward=OperatorWork(flops=2 * 4096 * 8192 * 57344))
    # Measured alone: 0.487 of 2,250 TFLOPS; and what a step keeps of it. Neighbours differ by a few percent.
    assert operator_s(large, "forward", DEVICES["b200"], rates) == pytest.approx(
        large.forward.flops / (2250e12 * 0.487 * rates.sustained), rel=0.05
    )
    assert rates.product(Engine.SCAN, "forward", ProductShape(1, 1, 1, 1)) == ROOFLINE.scan, "not in the table"


def test_words_that_are_not_known_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r'framework: found "megatron", expected plain or megatron-te'):
        predicted("llama3-8b", "b200", framework="megatron")
    with pytest.raises(InvalidInput, match=r'context_exchange: found "a2a", expected ring or all-to-all'):
        predicted("llama3-8b", "b200", context_exchange="a2a")


def test_what_is_said_counts_as_the_layers_do() -> None:
    """GPT-3's 50,257 rows are 6,400 on each of 8 devices with padding, in whose 12,288 gradients of 4 bytes the two ends meet."""
    made = predicted("gpt3-175b", "h100", tp=8, sequence=2048, framework="megatron-te")
    assert made.layers[0].parameters == (6400 + 2048) * 12288
    assert f'gradient = "{6400 * 12288 * 4 // 2**20} MiB"' in made.notes[-1]
    titles = [predicted("mixtral-8x7b", "h100", tp=2, ep=2, etp=etp).title for etp in (None, 2, 1)]
    assert [title.count(", tp 2, ep 2, etp 1,") for title in titles] == [0, 0, 1]

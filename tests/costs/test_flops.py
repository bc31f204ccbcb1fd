"""FLOPs of attention and of Mamba's scan against counts of every pair of tokens by hand."""

from __future__ import annotations

from schedc.costs.architecture import Architecture, Attention, Block, Mamba, Setting
from schedc.costs.operators.blocks import block_operators

TOKENS, HIDDEN = 12, 48


def test_the_scan_by_counting_products() -> None:
    """Each token with those before it in its chunk: B and C of each group, and the result with the input of each head.

    Besides, each token adds to the state of each head, and reads it.
    """
    mamba, tokens = Mamba(heads=4, head_dim=6, state=10, groups=2, chunk=8), 24
    architecture = Architecture(name="", hidden=HIDDEN, vocabulary=64, blocks=())
    operators = block_operators(Block((mamba,)), architecture, Setting(sequence_length=tokens))
    (scan,) = [operator for operator in operators if operator.name == "scan"]
    counted = 0
    for token in range(tokens):
        for _ in range(token // 8 * 8, token + 1):
            counted += 2 * (2 * 10) + 4 * (2 * 6)
        counted += 4 * (2 * 6 * 10) * 2
    assert scan.forward.flops == counted


def test_fused_attention_counts_the_pairs_that_the_mask_leaves() -> None:
    """Two products in F, five in B, over 78 of 144 pairs."""
    attention = Attention(heads=4, kv_heads=4, head_dim=12)
    architecture = Architecture(name="", hidden=HIDDEN, vocabulary=64, blocks=())
    operators = block_operators(Block((attention,)), architecture, Setting(sequence_length=TOKENS, microbatch_size=3))
    (core,) = [operator for operator in operators if operator.name == "attention"]
    assert core.forward.flops == 3 * 4 * 78 * 2 * (2 * 12)
    assert core.backward_input.flops == 3 * 4 * 78 * 5 * (2 * 12)

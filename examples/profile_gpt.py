"""A small Llama-like model for `schedc profile`, and a job that is compiled from what was measured.

    cd examples
    schedc profile --model profile_gpt:model -o profile_gpt_job/profile.json
    schedc compile profile_gpt_job/job.toml -o ../build/profile_gpt.plan.json

A factory gives the layers between which the pipeline may be cut, one microbatch, and the loss. For another model write another
factory; the module is imported from the current directory.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

from schedc.runtime.profiling import Model

TOKENS = 1024
LENGTH = 128
WIDTH = 128
HEADS = 4
BLOCKS = 8
SAMPLES = 2
"""Sequences per microbatch."""


class Embedding(nn.Module):
    """Tokens and their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[sample, position] of integers to [sample, position, WIDTH] and [position]."""
        return self.table(tokens), torch.arange(tokens.shape[1], device=tokens.device)


class Block(nn.Module):
    """Causal attention over rotated heads and a gated MLP, each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = nn.RMSNorm(WIDTH)
        self.gate_and_up = nn.Linear(WIDTH, 2 * 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[sample, position, WIDTH] and [position], in and out."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, -1))
        q, k = rotated(q, positions), rotated(k, positions)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, up = self.gate_and_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up), positions


class Head(nn.Module):
    """Logits, by the matrix of the embedding."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.out = nn.Linear(WIDTH, TOKENS, bias=False)
        self.out.weight = embedding.table.weight

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """[sample, position, TOKENS]."""
        result: torch.Tensor = self.out(self.norm(x))
        return result


def rotated(heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Pairs of [..., position, part of the head], each turned by an angle that grows with the position (RoPE)."""
    half = heads.shape[-1] // 2
    angles = positions[:, None] / 10_000 ** (torch.arange(half, device=positions.device) / half)
    cos, sin = angles.cos(), angles.sin()
    a, b = heads.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of the next token."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def model() -> Model:
    """The layers, and one microbatch for them."""
    torch.manual_seed(0)
    text = torch.randint(TOKENS, (SAMPLES, LENGTH + 1))
    embedding = Embedding()
    return Model(
        layers=[
            ("embedding", embedding),
            *((f"block.{index}", Block()) for index in range(BLOCKS)),
            ("head", Head(embedding)),
        ],
        inputs=text[:, :-1],
        targets=text[:, 1:],
        loss_fn=loss_fn,
        name=f"like Llama, {BLOCKS} blocks of width {WIDTH}, a microbatch of {SAMPLES} × {LENGTH} tokens",
    )

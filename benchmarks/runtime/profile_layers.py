"""Layers measured one by one against the stage of them measured whole: are a stage's costs the sum of its layers'?

Run it as `python benchmarks/runtime/profile_layers.py`, or with `--hidden 4096 --device cuda --dtype bfloat16` on a GPU. It prints
the profile of a few Llama-like blocks and the ratio of the whole to the sum, for each of F, B, W and BW and for the memory. The
front end adds layers up into stages, so a ratio far from 1 is an error of every plan that is compiled from a profile. Layers and
stage are measured in turn, several rounds, so that what else the machine does meets both; the last column has the ratio of the
fastest runs, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from schedc.analysis.comparison.times import SampledTimes
from schedc.runtime.profiling import Model, merged, profile_layer, profile_model, warnings
from schedc.units import format_bytes, format_duration_ns
from schedc.view.terminal.profile import ProfileRow, shown_profile
from schedc.view.terminal.show import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.profiling import MeasuredLayer

HEAD_WIDTH = 64


class Scale(nn.Module):
    """A layer before the others, so that the first of them has an input whose gradient is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape."""
        return x * self.factor


class Block(nn.Module):
    """Llama's: attention with rotary positions and a gated MLP, each after an RMS norm and around a residual."""

    angles: torch.Tensor

    def __init__(self, hidden: int, length: int) -> None:
        super().__init__()
        inner = 256 * -(-8 * hidden // (3 * 256))
        self.attention_norm = nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        frequencies = 10_000 ** -(torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
        self.register_buffer("angles", torch.outer(torch.arange(length), frequencies))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[sample, position, hidden], in and out."""
        q, k, v = (part.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, -1))
        mixed = scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        result: torch.Tensor = x + self.down(silu(self.gate(y)) * self.up(y))
        return result

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        cosine, sine = self.angles.cos().to(x.dtype), self.angles.sin().to(x.dtype)
        return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)


def pooled(layers: Sequence[MeasuredLayer]) -> MeasuredLayer:
    """One layer's samples of all rounds."""

    def times(phase: str) -> SampledTimes:
        return SampledTimes(tuple(sample for layer in layers for sample in layer.phases()[phase].samples_ns))

    return replace(
        layers[0],
        forward=times("forward"),
        backward_input=times("backward_input"),
        backward_weight=times("backward_weight"),
        backward=times("backward"),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--length", type=int, default=256, help="tokens of the microbatch, one sequence")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=4, help="of each round")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    blocks = [Block(options.hidden, options.length) for _ in range(options.layers)]
    inputs = torch.randn(1, options.length, options.hidden)

    def measure(*layers: tuple[str, nn.Module]) -> tuple[MeasuredLayer, ...]:
        model = Model(layers=[("before", Scale()), *layers], inputs=inputs)
        return profile_model(model, device=device, dtype=dtype, repeats=options.repeats)[1:]

    names = [(f"block.{index}", block) for index, block in enumerate(blocks)]
    rounds = [(*measure(*names), *measure(("stage", nn.Sequential(*blocks)))) for _ in range(options.rounds)]
    *apart, stage = (pooled(layers) for layers in zip(*rounds, strict=True))
    together = merged(apart)
    shown = (*apart, *(group for group in together if group.repeat > 1), stage)
    title = f"hidden {options.hidden}, {options.length} tokens, {options.dtype} on {options.device}, medians of"
    title += f" {options.rounds} × {options.repeats}"
    rows = [ProfileRow(profile_layer(layer), layer.phases(), layer.parameters) for layer in shown]
    show(shown_profile(rows, warnings(apart, together), title))

    table = Table(title=f"\na stage of {options.layers} blocks, whole and as the sum of them", title_justify="left", box=None)
    for header in ("", "sum", "whole", "whole ÷ sum", "of the fastest"):
        table.add_column(header, justify="right")
    whole = stage.phases()
    for name, phases in (*((phase, (phase,)) for phase in whole), ("F + B + W", ("forward", "backward_input", "backward_weight"))):
        total_ns = sum(layer.phases()[phase].median_ns for layer in apart for phase in phases)
        whole_ns = sum(whole[phase].median_ns for phase in phases)
        fastest = sum(min(layer.phases()[phase].samples_ns) for layer in apart for phase in phases)
        fastest_whole = sum(min(whole[phase].samples_ns) for phase in phases)
        ratios = f"{whole_ns / total_ns:.3f}", f"{fastest_whole / fastest:.3f}"
        table.add_row(name, format_duration_ns(total_ns), format_duration_ns(whole_ns), *ratios)
    for name, total, of_stage in (
        ("activation", sum(layer.activation_bytes for layer in apart), stage.activation_bytes),
        ("after B", sum(layer.held_after_input_bytes for layer in apart), stage.held_after_input_bytes),
    ):
        table.add_row(name, format_bytes(total), format_bytes(of_stage), f"{of_stage / total:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()

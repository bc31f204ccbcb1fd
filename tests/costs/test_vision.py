"""Encoders of images: published counts of their weights, FLOPs against torch's counter, and the graph that a profile of them is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import avg_pool2d, gelu, linear, silu
from torch.utils.flop_counter import FlopCounterMode

from schedc.api import read_job
from schedc.cli.app import main
from schedc.costs.architecture import (
    Architecture,
    Attention,
    Block,
    FeedForward,
    Setting,
    Vision,
    block_parameters,
    parameters,
    vision_parameters,
)
from schedc.costs.devices import DEVICES
from schedc.costs.hugging_face import architecture_of_config
from schedc.costs.layers import architecture_named, known_models, layers_of, parts_of
from schedc.costs.operators.attention import visible_pairs
from schedc.errors import Unsupported
from schedc.io.location import Location
from tests.costs.test_flops_by_torch import attend, by_head, flops, joined, weight

if TYPE_CHECKING:
    from pathlib import Path


def test_weights_of_encoders_are_those_of_checkpoints() -> None:
    """Qwen2.5-VL's `visual` of 3B and 7B, and one of its blocks; of Llama 4 the sum of its tensors beside the language model."""
    visions = {name: architecture_named(name).vision for name in ("qwen2.5-vl-3b", "qwen2.5-vl-7b", "llama4-scout")}
    found = {name: vision and vision_parameters(vision) for name, vision in visions.items()}
    assert found == {"qwen2.5-vl-3b": 668_684_288, "qwen2.5-vl-7b": 676_550_144, "llama4-scout": 871_932_416}
    qwen = visions["qwen2.5-vl-3b"]
    assert qwen is not None
    assert block_parameters(qwen.blocks[0], qwen) == 19_702_200
    assert [block.sublayers[0].kind for block in qwen.blocks].count("attention") == 4


@pytest.mark.parametrize(
    ("name", "published"), [("gemma3-4b", 4_300_079_472), ("gemma3-12b", 12_187_325_040), ("gemma3-27b", 27_432_406_640)]
)
def test_weights_of_gemma_with_the_vocabulary_of_its_checkpoint(name: str, published: int) -> None:
    """262,208 rows; the report's table rounds: 417M of the vision encoder, without the projector."""
    config = known_models()[name]["config"]
    config = {**config, "text_config": {**config["text_config"], "vocab_size": 262208}}
    found = architecture_of_config(config, name, Location("config.json"))
    vision, hidden = found.vision, found.hidden
    assert vision is not None
    of_text = replace(found, vision=None)
    assert parameters(of_text) + vision_parameters(vision) == parameters(found) == published
    assert vision_parameters(vision) - 1152 * hidden - 1152 == pytest.approx(417e6, rel=1e-3)


@pytest.mark.parametrize(("length", "window", "chunk", "causal"), [(11, None, 4, True), (12, 3, 6, True), (12, None, 4, False)])
def test_pairs_within_chunks_are_those_of_the_mask(length: int, window: int | None, chunk: int, causal: bool) -> None:
    seen = sum(
        token // chunk == other // chunk and (not causal or other <= token) and (window is None or token - other < window)
        for token in range(length)
        for other in range(length)
    )
    assert visible_pairs(length, window, chunk, causal=causal) == seen


HIDDEN, TEXT = 24, 40


def attention(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """4 heads of 6, both ways, within chunks; shape (patches, hidden)."""
    parts = [linear(x, weight(HIDDEN, HIDDEN)) for _ in range(3)]
    heads = [[by_head(part, 4) for part in torch.split(whole, chunk)] for whole in parts]
    return linear(torch.cat([joined(attend(*each)) for each in zip(*heads, strict=True)]), weight(HIDDEN, HIDDEN))


def qwen(patches: torch.Tensor) -> torch.Tensor:
    """36 patches of 30 numbers in windows of 12, then whole; gated layers; four patches to a token by two matrices."""
    x = linear(patches, weight(30, HIDDEN))
    for chunk in (12, 36):
        x = attention(x, chunk)
        x = linear(silu(linear(x, weight(HIDDEN, 50))) * linear(x, weight(HIDDEN, 50)), weight(50, HIDDEN))
    return linear(gelu(linear(x.view(9, 4 * HIDDEN), weight(4 * HIDDEN, 96))), weight(96, TEXT))


def gemma(patches: torch.Tensor) -> torch.Tensor:
    """36 patches, a plain layer, nine patches averaged to a token, one matrix."""
    x = attention(linear(patches, weight(30, HIDDEN)), 36)
    x = linear(gelu(linear(x, weight(HIDDEN, 50))), weight(50, HIDDEN))
    x = avg_pool2d(x.T.reshape(1, HIDDEN, 6, 6), 3).reshape(HIDDEN, 4).T
    return linear(x, weight(HIDDEN, TEXT))


def llama(patches: torch.Tensor) -> torch.Tensor:
    """36 patches and a class token, a plain layer, four patches to a token by three matrices."""
    x = torch.cat((linear(patches, weight(30, HIDDEN)), weight(HIDDEN, 1)))
    x = attention(x, 37)
    x = linear(gelu(linear(x, weight(HIDDEN, 50))), weight(50, HIDDEN))[:-1]
    x = gelu(linear(gelu(linear(x.reshape(9, 4 * HIDDEN), weight(4 * HIDDEN, 30))), weight(30, 20)))
    return linear(x, weight(20, TEXT))


WHOLE, PLAIN = Attention(heads=4, kv_heads=4, head_dim=6, causal=False), FeedForward(width=50, gated=False)
GATED = FeedForward(width=50, gated=True)
COMMON: dict[str, Any] = {"hidden": HIDDEN, "patch": 2, "patch_numbers": 30, "side": 12}
ENCODERS = {
    "qwen": (
        Vision(
            blocks=(Block((replace(WHOLE, chunk=12), GATED)), Block((WHOLE, GATED))),
            merged=2,
            projector=(4 * HIDDEN, 96, TEXT),
            **COMMON,
        ),
        qwen,
    ),
    "gemma": (Vision(blocks=(Block((WHOLE, PLAIN)),), merged=3, projector=(HIDDEN, TEXT), **COMMON), gemma),
    "llama": (
        Vision(blocks=(Block((WHOLE, PLAIN)),), merged=2, projector=(4 * HIDDEN, 30, 20, TEXT), further_states=1, **COMMON),
        llama,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_torch_counts_the_same_flops(name: str) -> None:
    """Pixels need no gradient. Three images are three times one."""
    vision, forward = ENCODERS[name]
    architecture = Architecture(name=name, hidden=TEXT, vocabulary=64, blocks=(), vision=vision)
    parts = parts_of(architecture, Setting(sequence_length=64, images=3))
    operators = [operator for part in parts[: len(vision.blocks) + 2] for operator in part.operators]
    with FlopCounterMode(display=False) as of_forward:
        tokens = forward(torch.randn(36, 30))
    with FlopCounterMode(display=False) as of_backward:
        torch.autograd.backward(tokens.sum())
    of_f, of_b = flops([operator for operator in operators if operator.name != "attention"])
    in_attention, pairs = 0.0, sum(visible_pairs(36 + vision.further_states, None, each, causal=False) for each in chunks(vision))
    in_attention = 2 * 4 * pairs * 12
    assert of_forward.get_total_flops() == of_f / 3 + in_attention
    assert of_backward.get_total_flops() == of_b / 3 + 2 * in_attention  # unfused: two products for each


def chunks(vision: Vision) -> list[int | None]:
    """Of the attention of each block."""
    return [each.chunk for block in vision.blocks for each in block.sublayers if isinstance(each, Attention)]


def costs(tmp_path: Path, *options: str) -> dict[str, Any]:
    """The profile that the command writes."""
    path = tmp_path / "profile.json"
    with pytest.raises(SystemExit) as ended:
        main(["costs", *options, "-o", str(path)])
    assert not ended.value.code
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_profile_with_images_is_a_graph_that_jobs_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens of images go to the embedding, and token ids past the encoder; without images it is the decoder's chain."""
    found = costs(tmp_path, "qwen2.5-vl-3b", "--images", "2", "--image-size", "450x668", "--sequence", "2048")
    assert found["modules"] == [
        {"name": "vision", "layers": 34, "inputs": []},
        {"name": "text", "layers": 38, "inputs": ["vision"]},
    ]
    (ids,) = found["edges"]
    assert ids == {"source": "vision.0", "destination": "text", "value": "ids", "message": "16 KiB", "gradient": False}
    said = capsys.readouterr().out
    assert "2 of 448 × 672 pixels, 384 tokens each" in said
    assert 'the job\'s [[tied]] has its sum: first = 34, last = 71, gradient = "1.159 GiB"' in " ".join(said.split())
    last = next(layer for layer in found["layers"] if layer["name"] == "projector")
    assert last["message"] == "3 MiB"  # 2 × 384 tokens of 2,048 elements of 2 B
    pipeline = 'ranks = 4\nmicrobatches = 4\nplacement = "unidirectional"\npartition = [17, 17, 19, 19]'
    tied = 'first = 34\nlast = 71\ngradient = "1.159 GiB"'
    (tmp_path / "job.toml").write_text(f'[pipeline]\n{pipeline}\n[profile]\npath = "profile.json"\n[[tied]]\n{tied}\n')
    problem = read_job(tmp_path / "job.toml").problem
    assert problem.edges
    assert "modules" not in costs(tmp_path, "qwen2.5-vl-3b", "--sequence", "2048")


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        ("llama3-8b", {"images": 1}, "1 images: llama3-8b takes none, expected 0"),
        ("qwen2.5-vl-3b", {"images": 1}, "found no size of the images, expected one"),
        ("qwen2.5-vl-3b", {"images": 9, "image_size": (700, 700)}, "the 5625 tokens of 9 images are more than the 4096 of"),
        ("gemma3-4b", {"images": 1, "image_size": (700, 896)}, "found images of 700x896 pixels, expected 896x896, as all are"),
        ("gemma3-4b", {"images": 1, "context_parallel": 2}, "context parallelism with images is not modelled"),
        (
            "qwen2.5-vl-72b",
            {"images": 1, "image_size": (56, 56), "tensor_parallel": 32},
            "tensor parallel size 32 does not divide 16 heads",
        ),
    ],
)
def test_images_that_cannot_be_are_refused(name: str, setting: dict[str, Any], expected: str) -> None:
    with pytest.raises(Unsupported, match=expected):
        layers_of(architecture_named(name), DEVICES["h100"], Setting(sequence_length=4096, **setting))


def test_a_size_that_is_none_is_refused_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["costs", "qwen2.5-vl-3b", "--image-size", "450*668", "-o", str(tmp_path / "profile.json")])
    assert ended.value.code == 2
    assert '--image-size: found "450*668", expected width and height in pixels, as in 1024x768' in capsys.readouterr().err

"""The `vision_config` of a Hugging Face config.json: Qwen2.5-VL's, Llama 4's and SigLIP's as Gemma 3 has it.

Each reader takes the keys of `vision_config`, those of the whole config.json and the decoder's width. Blocks of all three attend
both ways; windows of Qwen are chunks, those at the right and lower edge of an image counted as whole ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedc.costs.architecture import Attention, Block, FeedForward, Vision

if TYPE_CHECKING:
    from schedc.costs.config_keys import ConfigKeys

MOST_BLOCKS = 2**16


def qwen_vision(keys: ConfigKeys, _: ConfigKeys, width: int) -> Vision:
    """Of images of any size; all blocks but some attend within windows; an image is two equal frames."""
    hidden, patch, merged = keys.count("hidden_size"), keys.count("patch_size", 14), keys.count("spatial_merge_size", 2)
    whole = keys.whole_numbers("fullatt_block_indexes")
    full = _attention(keys, hidden, keys.count("num_heads", 16))
    windowed = replace(full, chunk=(keys.count("window_size", 112) // patch) ** 2)
    feed_forward = FeedForward(width=keys.count("intermediate_size", 3420), gated=True, bias=True)
    kinds = [Block((windowed, feed_forward)), Block((full, feed_forward))]
    whole = [7, 15, 23, 31] if whole is None else whole
    _must_be(keys, "out_hidden_size", width)
    channels = keys.count("in_channels", keys.count("in_chans", 3))
    joined = hidden * merged**2
    return Vision(
        hidden=hidden,
        blocks=tuple(kinds[block in whole] for block in range(keys.count("depth", 32, most=MOST_BLOCKS))),
        patch=patch,
        patch_numbers=channels * keys.count("temporal_patch_size", 2) * patch**2,
        side=None,
        merged=merged,
        projector=(joined, joined, width),
        projector_bias=True,
        projector_norm=True,
    )


def llama4_vision(keys: ConfigKeys, _: ConfigKeys, width: int) -> Vision:
    """Of tiles of one size, with a class token; `pixel_shuffle_ratio` is one part of a number of patches."""
    hidden, side, patch = keys.count("hidden_size"), keys.count("image_size"), keys.count("patch_size", 14)
    ratio = keys.table.get("pixel_shuffle_ratio", 0.5)
    keys.read |= {"pixel_shuffle_ratio", "projector_input_dim"}
    merged = round(1 / ratio) if isinstance(ratio, int | float) and 0 < ratio <= 1 else 0
    if not merged or merged * ratio != 1:
        raise keys.refuse("pixel_shuffle_ratio", "1, 0.5, 0.25 or another whole part of 1", ratio)
    keys.must_be(False, "multi_modal_projector_bias")
    first, second = keys.count("projector_input_dim", 4096), keys.count("projector_output_dim", 4096)
    _must_be(keys, "vision_output_dim", second)
    patches = _patches(keys, side, patch)
    return Vision(
        hidden=hidden,
        blocks=_plain_blocks(keys, hidden, rotary=True),
        patch=patch,
        patch_numbers=keys.count("num_channels", 3) * patch**2,
        side=side,
        merged=merged,
        projector=(hidden * merged**2, first, second, width),
        further_states=1,
        positions=patches + 1,
        norm_bias=True,
        norm_before=True,
        norm_after=True,
    )


def siglip(keys: ConfigKeys, whole: ConfigKeys, width: int) -> Vision:
    """Of images of one size, whose hidden states are averaged to `mm_tokens_per_image`."""
    hidden, side, patch = keys.count("hidden_size"), keys.count("image_size"), keys.count("patch_size")
    keys.must_be(False, "vision_use_head")
    patches, tokens = _patches(keys, side, patch), whole.count("mm_tokens_per_image", 256)
    merged = round((patches / tokens) ** 0.5)
    if tokens * merged**2 != patches:
        raise whole.refuse("mm_tokens_per_image", f"{patches} patches divided by a square", tokens)
    return Vision(
        hidden=hidden,
        blocks=_plain_blocks(keys, hidden, rotary=False),
        patch=patch,
        patch_numbers=keys.count("num_channels", 3) * patch**2,
        side=side,
        merged=merged,
        projector=(hidden, width),
        projector_norm=True,
        positions=patches,
        patch_bias=True,
        norm_bias=True,
        norm_after=True,
    )


def _plain_blocks(keys: ConfigKeys, hidden: int, *, rotary: bool) -> tuple[Block, ...]:
    """Attention and a plain feed-forward layer, all with biases."""
    attention = replace(_attention(keys, hidden, keys.count("num_attention_heads")), rotary=rotary)
    feed_forward = FeedForward(width=keys.count("intermediate_size"), gated=False, bias=True)
    return (Block((attention, feed_forward)),) * keys.count("num_hidden_layers", most=MOST_BLOCKS)


def _attention(keys: ConfigKeys, hidden: int, heads: int) -> Attention:
    if hidden % heads:
        raise keys.refuse("hidden_size", f"a multiple of {heads} heads", hidden)
    return Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=False, input_bias=True, output_bias=True)


def _patches(keys: ConfigKeys, side: int, patch: int) -> int:
    if side % patch:
        raise keys.refuse("image_size", f"a multiple of patch_size, {patch}", side)
    return (side // patch) ** 2


def _must_be(keys: ConfigKeys, key: str, width: int) -> None:
    if keys.count(key) != width:
        raise keys.refuse(key, f"{width}, which takes it", keys.table[key])

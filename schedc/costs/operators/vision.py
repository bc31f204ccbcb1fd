"""The operators of an encoder of images before and behind its blocks: what makes hidden states of patches, and tokens of these.

Each device of a tensor-parallel group has its share of the patches there, and the whole matrices. Pixels come with the batch and
have no gradient. An image's blocks attend within it: `image_setting` takes images for sequences.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.costs.operators.blocks import norm
from schedc.costs.operators.operator import NO_WORK, Operators, elementwise, matrix_product
from schedc.errors import Unsupported

if TYPE_CHECKING:
    from schedc.costs.architecture import Setting, Vision


def image_tokens(vision: Vision, setting: Setting) -> int:
    """How many tokens of the decoder the images of a microbatch are.

    Raises:
        Unsupported: more than it has, images of a size that the encoder does not take or that is not said, or context parallelism.
    """
    if setting.context_parallel > 1:
        raise Unsupported("context parallelism with images is not modelled")
    if vision.side is None and setting.image_size is None:
        raise Unsupported("found no size of the images, expected one (--image-size), as the model takes images of any size")
    if setting.image_size is not None and vision.side is not None and setting.image_size != (vision.side,) * 2:
        found, expected = "x".join(map(str, setting.image_size)), f"{vision.side}x{vision.side}, as all are"
        raise Unsupported(f"found images of {found} pixels, expected {expected}; count the parts that an image is cut into")
    wide, high = vision.grid(setting.image_size)
    tokens, room = setting.images * wide * high, setting.microbatch_size * setting.sequence_length
    if tokens > room:
        raise Unsupported(f"the {tokens} tokens of {setting.images} images are more than the {room} of a microbatch")
    return tokens


def image_setting(vision: Vision, setting: Setting) -> Setting:
    """The setting of the encoder: its sequences are the images, their tokens the patches."""
    wide, high = vision.grid(setting.image_size)
    states = wide * high * vision.merged**2 + vision.further_states
    return replace(setting, microbatch_size=setting.images, sequence_length=states)


def patch_operators(vision: Vision, setting: Setting) -> Operators:
    """Patches to hidden states, with their positions; the setting is that of the encoder."""
    learned = vision.hidden * (vision.patch_bias + vision.positions + vision.further_states)
    own = setting.own_tokens * (1 - vision.further_states / setting.sequence_length)
    patches = matrix_product("patches", setting, vision.patch_numbers, vision.hidden, tokens=own, bias=learned)
    return [replace(patches, backward_input=NO_WORK), *([norm(vision, setting)] if vision.norm_before else [])]


def projector_operators(vision: Vision, setting: Setting) -> Operators:
    """Hidden states of neighbouring patches to tokens of the decoder; the setting is that of the encoder."""
    own = setting.own_tokens * (1 - vision.further_states / setting.sequence_length)
    tokens, into = own / vision.merged**2, vision.projector[0]
    operators = [norm(vision, setting)] if vision.norm_after else []
    operators.append(elementwise("merge", setting, own * vision.hidden, forward=2, backward=2))
    if vision.projector_norm:
        operators.append(elementwise("norm", setting, tokens * into, forward=2, backward=3, kept=1, parameters=vision.hidden))
    for number, (inner, outer) in enumerate(pairwise(vision.projector)):
        if number:
            operators.append(elementwise("activation", setting, tokens * inner, forward=2, backward=3, kept=1))
        bias = outer if vision.projector_bias else 0.0
        operators.append(matrix_product("projection", setting, inner, outer, tokens=tokens, bias=bias))
    return operators

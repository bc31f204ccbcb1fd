"""What a language model consists of, as far as costs depend on it, and its weights; and a `Setting`, how it is run.

All are frozen, so equal blocks are recognized. A *sublayer* reads the residual stream through a norm and adds its output to it.
Dimensions are numbers of elements; nothing here knows of devices, bytes or time. How many weights there are follows from dimensions
alone: the numbers that are published beside a model's name. `schedc.costs.operators` counts what a device holds of them, operator
by operator; the tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import ceil, comb
from typing import ClassVar, TypeAlias

VOCABULARY_PADDING = 128
"""Megatron-LM's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention: full, grouped (fewer heads of keys and values than of queries), over a sliding window, or within chunks."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """A token sees at most this many tokens, itself included; None: all before it."""
    chunk: int | None = None
    """The sequence is cut into chunks of this many tokens, and a token sees those of its chunk alone; None: it is not."""
    causal: bool = True
    """A token sees none behind it; False: both ways, as in encoders of images."""
    input_bias: bool = False
    """Of the projections to queries, keys and values."""
    output_bias: bool = False
    head_norms: bool = False
    """Queries and keys pass a norm over each head."""
    head_norm_weights: bool = True
    """These norms have weights."""
    rotary: bool = True

    @property
    def kind(self) -> str:
        """For people, as in the other sublayers."""
        return "attention" if self.window is self.chunk is None else "windowed attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """DeepSeek's MLA: keys and values, and mostly queries, are projected down to a latent vector and up again."""

    heads: int
    query_rank: int | None
    """None: queries are projected directly."""
    kv_rank: int
    plain_dim: int
    """Of the part of a head's query and key without rotary embedding."""
    rotary_dim: int
    """Of the part with it; one key of this size is shared by all heads."""
    value_dim: int
    kind: ClassVar[str] = "latent attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two projections with an activation function between them; three where it is gated (SwiGLU, GeGLU)."""

    width: int
    gated: bool
    bias: bool = False
    kind: ClassVar[str] = "feed-forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of gated experts: a router, `count` routed experts of which a token takes `chosen`, and perhaps shared ones."""

    count: int
    chosen: int
    width: int
    """Of one routed expert."""
    shared_width: int = 0
    """Of all shared experts together; each token passes them."""
    router_bias: bool = False
    groups: int = 1
    """Of as many experts each; a token takes experts of `chosen_groups` of them alone (DeepSeek)."""
    chosen_groups: int = 1
    kind: ClassVar[str] = "experts"

    def reached(self, part: int) -> float:
        """Which share of the tokens takes an expert of a part that has this many, in the mean.

        Each choice of groups, and of experts in them, is as likely as any other. Parts are of one group, or of whole ones.
        """
        size, taken = self.count // self.groups, self.chosen_groups
        own, each = (1, part) if part <= size else (part // size, size)  # groups of the part, and its experts in each
        missed = sum(
            comb(own, met) * comb(self.groups - own, taken - met) * comb(taken * size - met * each, self.chosen)
            for met in range(min(own, taken) + 1)
        )
        return 1 - missed / (comb(self.groups, taken) * comb(taken * size, self.chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A Mamba-2 mixer: a projection in, a short convolution, the scan in chunks, a gated norm, a projection out."""

    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int = 4
    chunk: int = 256
    kind: ClassVar[str] = "mamba"

    @property
    def inner(self) -> int:
        """The width of the mixer."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """How many channels pass the convolution: the input, and B and C of each group."""
        return self.inner + 2 * self.groups * self.state


Sublayer: TypeAlias = Attention | LatentAttention | FeedForward | Experts | Mamba


@dataclass(frozen=True, slots=True)
class Block:
    """What the model counts as one layer: one or more sublayers in a row. No layout cuts it."""

    sublayers: tuple[Sublayer, ...]
    norms_after: bool = False
    """Each sublayer's output passes a norm, too (Gemma)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """An encoder of images: a projection of their patches, blocks, and a projector to tokens of the decoder."""

    hidden: int
    blocks: tuple[Block, ...]
    patch: int
    """Pixels of a patch's side."""
    patch_numbers: int
    """Numbers of a patch: its pixels, of all channels and frames."""
    side: int | None
    """Pixels of the side of every image; None: images have any size."""
    merged: int
    """Patches of the side of the square that becomes one token."""
    projector: tuple[int, ...]
    """Elements of a token before each matrix of the projector, and behind the last; between two is an activation function."""
    projector_bias: bool = False
    projector_norm: bool = False
    """What comes into the projector passes a norm of `hidden` weights."""
    further_states: int = 0
    """Hidden states of an image besides those of its patches: a class token, which no token of the decoder is made of."""
    positions: int = 0
    """How many learned position embeddings there are."""
    patch_bias: bool = False
    norm_bias: bool = False
    """Norms have a bias beside their weight (LayerNorm)."""
    norm_before: bool = False
    """Of what goes into the blocks."""
    norm_after: bool = False

    def grid(self, image_size: tuple[int, int] | None) -> tuple[int, int]:
        """How many tokens wide and high an image of a width and a height in pixels is, rounded to whole ones; None: as all are."""
        width, height = image_size or (self.side or 0,) * 2
        step = self.patch * self.merged
        return max(1, round(width / step)), max(1, round(height / step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder: an embedding, blocks, perhaps modules that predict further tokens, and a head."""

    name: str
    hidden: int
    vocabulary: int
    blocks: tuple[Block, ...]
    further_tokens: tuple[Block, ...] = ()
    """The block of each multi-token-prediction module (DeepSeek-V3)."""
    tied: bool = False
    """The head's matrix is that of the embedding."""
    positions: int = 0
    """How many learned position embeddings there are."""
    norm_bias: bool = False
    """Norms have a bias beside their weight (LayerNorm)."""
    vision: Vision | None = None
    """What makes tokens of images."""


class Framework(StrEnum):
    """Whose habits count: what a framework pads, fuses and holds that the model does not ask for."""

    PLAIN = "plain"
    """None's."""
    MEGATRON_TE = "megatron-te"
    """Megatron-LM with Transformer Engine: the vocabulary is padded, the loss fused over 16-bit logits, which its gradient takes
    the place of; gradients of weights are summed in the products, and one empty gradient for each shape of a weight stays for
    autograd.
    """


class ExpertExchange(StrEnum):
    """How tokens come to their experts, and back."""

    ALL_TO_ALL = "all-to-all"
    """A copy for each expert that a token takes goes to its device (Megatron-LM, `alltoall`)."""
    HIERARCHICAL = "hierarchical"
    """One copy goes to each node that has some of them, and on from there through the node's links, one to each device (DeepEP,
    HybridEP)."""


class ContextExchange(StrEnum):
    """How devices that share a sequence see all of it."""

    RING = "ring"
    """Keys and values go round while devices compute."""
    ALL_TO_ALL = "all-to-all"
    """Before attention each device gets all tokens of its share of the heads, and sends them back behind it (Ulysses)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one device gets of the model and of one microbatch.

    Tensor parallelism is Megatron's, with sequence parallelism: outside the projections each device has its share of the tokens.
    """

    microbatch_size: int = 1
    """Sequences."""
    sequence_length: int
    """Tokens."""
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    """Devices that divide the width of an expert; None: as many as elsewhere."""
    context_exchange: ContextExchange = ContextExchange.RING
    expert_exchange: ExpertExchange = ExpertExchange.ALL_TO_ALL
    node: int | None = None
    """Devices that fast links connect; None: all."""
    framework: Framework = Framework.PLAIN
    element_bytes: int = 2
    """Of activations and of the weights that are computed with."""
    fused_attention: bool = True
    """Scores never reach the device's memory; False: they do, and none is skipped by the mask."""
    selective_recompute: bool = False
    """B computes outputs of norms and activation functions again, instead of keeping them."""
    images: int = 0
    """Of a microbatch, all its sequences together; their tokens are among these."""
    image_size: tuple[int, int] | None = None
    """Width and height of each image in pixels; None: as the encoder has it."""

    @cached_property
    def tokens(self) -> float:
        """Of one microbatch, on the devices of one tensor-parallel group."""
        return self.microbatch_size * self.sequence_length / self.context_parallel

    @cached_property
    def own_tokens(self) -> float:
        """Those of one device outside the projections."""
        return self.tokens / self.tensor_parallel

    @property
    def is_megatron(self) -> bool:
        """Whether Megatron-LM's and Transformer Engine's habits count."""
        return self.framework is Framework.MEGATRON_TE

    @property
    def expert_tensor(self) -> int:
        """Devices that divide the width of an expert."""
        return self.tensor_parallel if self.expert_tensor_parallel is None else self.expert_tensor_parallel

    def rows(self, vocabulary: int) -> int:
        """Of the vocabulary on one device; Megatron-LM pads it (`make_vocab_size_divisible_by` × the tensor parallel size)."""
        padding = VOCABULARY_PADDING if self.is_megatron else 1
        return padding * ceil(vocabulary / (padding * self.tensor_parallel))


def parameters(architecture: Architecture) -> int:
    """Of the whole model without its multi-token-prediction modules; a matrix that embedding and head share counts once."""
    hidden, vocabulary, vision = architecture.hidden, architecture.vocabulary, architecture.vision
    ends = vocabulary * hidden * (1 if architecture.tied else 2) + architecture.positions * hidden
    blocks = sum(block_parameters(block, architecture) for block in architecture.blocks)
    return ends + _norm(architecture) + blocks + (0 if vision is None else vision_parameters(vision))


def vision_parameters(vision: Vision) -> int:
    """Of an encoder of images, its projector included."""
    hidden = vision.hidden
    ends = hidden * (vision.patch_numbers + vision.patch_bias + vision.positions + vision.further_states + vision.projector_norm)
    norms = _norm(vision) * (vision.norm_before + vision.norm_after)
    projector = sum((inner + vision.projector_bias) * outer for inner, outer in pairwise(vision.projector))
    return ends + norms + projector + sum(block_parameters(block, vision) for block in vision.blocks)


def second_embedding(architecture: Architecture) -> int | None:
    """Which layer, from the embedding on, has the embedding's matrix, too: a tied head, else the first module for further tokens.

    Megatron-LM gives that module's rank a copy, and sums the gradients of both (`MultiTokenPredictionBlock`).
    """
    blocks = len(architecture.blocks) + 1
    return blocks + len(architecture.further_tokens) if architecture.tied else blocks if architecture.further_tokens else None


def further_token_parameters(architecture: Architecture) -> int:
    """Of the multi-token-prediction modules, without the embedding and the head that they share with the model.

    A module has two norms, a projection of two hidden vectors to one, a block and a last norm.
    """
    hidden = architecture.hidden
    return sum(
        2 * hidden**2 + 3 * _norm(architecture) + block_parameters(block, architecture) for block in architecture.further_tokens
    )


def expert_parameters(architecture: Architecture) -> int:
    """Of all routed experts, those of multi-token-prediction modules included."""
    blocks = (*architecture.blocks, *architecture.further_tokens)
    experts = (sublayer for block in blocks for sublayer in block.sublayers if isinstance(sublayer, Experts))
    return sum(3 * architecture.hidden * each.count * each.width for each in experts)


def matrix_parameters(architecture: Architecture) -> int:
    """Those of the decoder, without further tokens, that each token is multiplied with: two FLOPs for each in a forward."""
    hidden = architecture.hidden
    idle = architecture.positions * hidden + (0 if architecture.tied else architecture.vocabulary * hidden) + _norm(architecture)
    idle += 0 if architecture.vision is None else vision_parameters(architecture.vision)
    for block in architecture.blocks:
        idle += len(block.sublayers) * (2 if block.norms_after else 1) * _norm(architecture)
        experts = (sublayer for sublayer in block.sublayers if isinstance(sublayer, Experts))
        idle += sum(3 * hidden * (each.count - each.chosen) * each.width for each in experts)
    return parameters(architecture) - idle


def block_parameters(block: Block, architecture: Architecture | Vision) -> int:
    """Of one block, its norms included."""
    norms = len(block.sublayers) * (2 if block.norms_after else 1) * _norm(architecture)
    return norms + sum(sublayer_parameters(sublayer, architecture.hidden) for sublayer in block.sublayers)


def sublayer_parameters(sublayer: Sublayer, hidden: int) -> int:
    """Of one sublayer without the norm before it."""
    match sublayer:
        case Attention():
            queries, keys = sublayer.heads * sublayer.head_dim, sublayer.kv_heads * sublayer.head_dim
            weights = hidden * (queries + 2 * keys) + queries * hidden
            biases = (queries + 2 * keys) * sublayer.input_bias + hidden * sublayer.output_bias
            return weights + biases + 2 * sublayer.head_dim * (sublayer.head_norms and sublayer.head_norm_weights)
        case LatentAttention():
            queries, rank = sublayer.heads * (sublayer.plain_dim + sublayer.rotary_dim), sublayer.query_rank
            to_queries = hidden * queries if rank is None else hidden * rank + rank + rank * queries
            down = hidden * (sublayer.kv_rank + sublayer.rotary_dim) + sublayer.kv_rank
            up = sublayer.kv_rank * sublayer.heads * (sublayer.plain_dim + sublayer.value_dim)
            return to_queries + down + up + sublayer.heads * sublayer.value_dim * hidden
        case FeedForward():
            matrices = (3 if sublayer.gated else 2) * hidden * sublayer.width
            return matrices + (((2 if sublayer.gated else 1) * sublayer.width + hidden) if sublayer.bias else 0)
        case Experts():
            router = sublayer.count * (hidden + sublayer.router_bias)
            return router + 3 * hidden * (sublayer.count * sublayer.width + sublayer.shared_width)
        case Mamba():
            projection = hidden * (sublayer.inner + sublayer.convolved + sublayer.heads)
            convolution = sublayer.convolved * (sublayer.convolution + 1)
            return projection + convolution + 3 * sublayer.heads + sublayer.inner + sublayer.inner * hidden


def _norm(architecture: Architecture | Vision) -> int:
    return architecture.hidden * (2 if architecture.norm_bias else 1)

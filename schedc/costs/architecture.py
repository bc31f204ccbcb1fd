"""What a language model consists of, as far as costs depend on it, its sublayers in their order; and a `Setting`, how it is run.

All are frozen, so equal blocks are recognized. A *sublayer* reads the residual stream through a norm and adds its output to it.
Dimensions are numbers of elements; nothing here knows of devices, bytes or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention: full, grouped (fewer heads of keys and values than of queries), or over a sliding window."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """A token sees at most this many tokens, itself included; None: all before it."""
    input_bias: bool = False
    """Of the projections to queries, keys and values."""
    output_bias: bool = False
    head_norms: bool = False
    """Queries and keys pass a norm over each head."""
    rotary: bool = True

    @property
    def kind(self) -> str:
        """For people, as in the other sublayers."""
        return "attention" if self.window is None else "windowed attention"


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
    kind: ClassVar[str] = "experts"


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
    element_bytes: int = 2
    """Of activations and of the weights that are computed with."""
    fused_attention: bool = True
    """Scores never reach the device's memory; False: they do, and none is skipped by the mask."""
    selective_recompute: bool = False
    """B computes outputs of norms and activation functions again, instead of keeping them."""

    @cached_property
    def tokens(self) -> float:
        """Of one microbatch, on the devices of one tensor-parallel group."""
        return self.microbatch_size * self.sequence_length / self.context_parallel

    @cached_property
    def own_tokens(self) -> float:
        """Those of one device outside the projections."""
        return self.tokens / self.tensor_parallel

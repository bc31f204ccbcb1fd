"""How a model is run: how it is divided among devices, and how long a microbatch is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


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

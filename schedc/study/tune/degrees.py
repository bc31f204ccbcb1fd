"""Degrees of parallelism within a pipeline's rank: which are tried, a pure function of numbers, and which weights have replicas."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.tune_file import ModelSection

LEAST_TOKENS = 4096
"""Unless the job says which, context parallel sizes are tried that leave each device this many tokens of a sequence: below, its
messages take longer than what they are hidden behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How a pipeline's rank divides the model among its devices, and a weight among pipelines."""

    tensor: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1

    @property
    def columns(self) -> dict[str, int]:
        """By their short names; an expert's width is divided where there are several groups of experts, or as all others."""
        return {"tp": self.tensor, "cp": self.context, "ep": self.expert, "etp": self.expert_tensor}

    @property
    def group(self) -> int:
        """Devices of a rank."""
        return self.tensor * self.context

    def replicas(self, pipelines: int) -> int:
        """How many devices of a stage have the same weights: all that share sequences, too."""
        return pipelines * self.context

    def divides_experts(self, pipelines: int) -> bool:
        """Whether groups of expert parallelism fill the devices of a stage (Megatron-LM, `parallel_state`)."""
        return pipelines * self.group % (self.expert * self.expert_tensor) == 0

    def expert_replicas(self, pipelines: int) -> int:
        """How many devices of a stage have the same experts."""
        return pipelines * self.group // (self.expert * self.expert_tensor)

    def has_replicas(self, pipelines: int) -> bool:
        """Whether some weights of a stage are on several devices; those of experts may be where no others are."""
        return max(self.replicas(pipelines), self.expert_replicas(pipelines)) > 1


def tried_degrees(
    model: ModelSection, sites: Sequence[int], *, sequence: int | None, node: int, experts: int
) -> tuple[Degrees, ...]:
    """What is tried: what the job says, or powers of two for what it leaves out; only groups that fill each site.

    Args:
        model: what the job says.
        sites: the number of devices of each.
        sequence: its tokens; None: not known.
        node: how many devices fast links connect; tensor parallelism stays among these.
        experts: of a layer of the model; 0: it has none.
    """
    tensors = _given(model.tp) or _powers(min(node, max(sites)))
    contexts = _given(model.cp) or _powers(max(1, (sequence or 0) // LEAST_TOKENS))
    expert = _given(model.ep) or tuple(each for each in _powers(experts) if experts % each == 0)
    found: dict[Degrees, None] = {}
    for tensor, context, each in product(tensors, contexts, expert):
        if any(devices % (tensor * context) for devices in sites) or each > sum(sites):
            continue
        # Experts divided over data and context parallelism alone, or over the devices of the tensor parallel groups, too.
        for etp in _given(model.etp) or ((tensor, 1) if each > 1 else (tensor,)):
            found[Degrees(tensor=tensor, context=context, expert=each, expert_tensor=etp)] = None
    return tuple(found)


def _given(sizes: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else sizes or ()


def _powers(most: int) -> tuple[int, ...]:
    """The powers of two up to a number, 1 in any case."""
    return tuple(2**exponent for exponent in range(max(1, most).bit_length()))

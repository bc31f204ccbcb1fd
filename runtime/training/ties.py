"""A weight that stages of several ranks hold, made one by name where `build_stages` has not done it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.replicas.copies import tied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from schedc.runtime.session.pipe import Pipe


def tie_weights(pipe: Pipe, weights: Mapping[str, nn.Parameter]) -> None:
    """Let copies of a weight on several ranks be one weight; all ranks call it together, between `load` and the first step.

    Args:
        pipe: this rank's.
        weights: those of its stages' weights that other ranks have as well, by a name that is the same on all of them; empty on
            ranks that have none. Nothing is to be done, nor done, for those that are tied already, and those whose ends are all on
            one rank.

    Raises:
        InvalidInput: on all ranks: a weight is not of this rank's stages, or only one module of one rank has a weight of this name.
        CheckFailed: on all ranks: the copies differ.
        Unsupported: on all ranks: stages are replicas of each other, or weights are sharded.
        TransferFailed: another rank has ended, or does not call it.
    """
    pipe.steps.ties = tied(pipe.steps.ties, pipe.hooks, pipe.plan, pipe.modules, pipe.groups, weights)

"""What makes up for the delay of gradients where steps overlap: corrections that a job gives to `StageOptimizers`.

A correction changes the learning rate of an update, or the weights that are read. NAdam with a large first beta
(`torch.optim.NAdam(weights, betas=(0.99, 0.999))`, Ajanthan et al., "Nesterov method for asynchronous pipeline parallel
optimization", 2025) is one as well, and needs nothing of this: it is an optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    import torch


class Correction:
    """Called for one stage of `delay` updates; these methods change nothing, override those that matter."""

    reads_ahead = False
    """Whether `weights` gives something else than the newest."""

    def learning_rate(self, rate: float, delay: int, number: int) -> float:
        """The learning rate of an update.

        Args:
            rate: that of its parameter group.
            delay: of the stage, in updates.
            number: of the update, counted from 0 over all runs (`StageOptimizers.updates`).
        """
        return rate

    def weights(self, newest: torch.Tensor, before: torch.Tensor, delay: int) -> torch.Tensor:
        """What ops read in place of one weight, a new tensor: both are float tensors of its shape, and are not to be changed.

        Args:
            newest: after the update.
            before: before it.
            delay: of the stage, in updates.
        """
        return newest


class WeightPrediction(Correction):
    """Ops read the weights that are expected when their gradient is used: W - delay · lr · ΔW, with lr · ΔW of the last update.

    As SpecTrain (Chen et al., 2018) and PipeMare's T2 (Yang et al., 2021) do, for any optimizer: the last update is the difference
    of two versions. F and the backwards read predictions of the versions that they would read. It holds one more copy of them.
    """

    reads_ahead = True

    def weights(self, newest: torch.Tensor, before: torch.Tensor, delay: int) -> torch.Tensor:
        """As `Correction.weights`."""
        return newest + delay * (newest - before)


class ReducedRate(Correction):
    """PipeMare's learning rate (Yang et al., 2021, T1) in update k: lr / delay^(1 - min(k / K, 1)); as it is without a delay."""

    def __init__(self, updates: int) -> None:
        """Take K, the number of updates after which all stages have the whole learning rate; at least 1, or InvalidInput."""
        if updates < 1:
            raise InvalidInput(f"found ReducedRate({updates}), expected a number of updates, at least 1")
        self._updates = updates

    def learning_rate(self, rate: float, delay: int, number: int) -> float:
        """As `Correction.learning_rate`."""
        return float(rate / max(delay, 1) ** (1 - min(number / self._updates, 1)))

"""The modules of a head that is split over ranks: a part of the vocabulary's logits on each, and the loss of all of them on one.

For each token part r gives three numbers of its logits: the largest m_r, the sum s_r of exp(logit - m_r), and the target's logit
t_r, 0 where another part has it. With M the largest m_r, log(sum of s_r exp(m_r - M)) + M is the logarithm of the sum of all
exponentials, whatever constants the m are. So they carry no gradient, and autograd takes the loss back through s_r and t_r: exact,
without a collective. No exponent is above 0, and the largest is 0. (Vocabulary parallelism has the same sums, as all-reduces.)

The numbers are float32, or float64 of float64 logits.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import linear

from schedc.errors import InvalidInput


class HeadPart(nn.Module):
    """Some rows of a head's weight, as a stage: `part(hidden, targets)`.

    Kept for the backward: the hidden states, and once the logits, in their own type. After B: the hidden states, and the logits'
    gradient, of which W computes the weight's.
    """

    takes_targets = True
    """A step gives it the microbatch's targets, as `targets`."""
    takes_state = False
    """In slices, it computes each token by itself."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        first: int,
        vocabulary: int,
        label_smoothing: float = 0.0,
    ) -> None:
        """Take the part's weights.

        Args:
            weight: rows × width; a Parameter is taken as it is. Rows beyond the vocabulary are padding, whose gradients are 0.
            bias: a number for each row.
            first: the token of the first row.
            vocabulary: how many tokens all parts have together, without padding.
            label_smoothing: as of `torch.nn.functional.cross_entropy`; the same in all parts.

        Raises:
            InvalidInput: there is no such part, or no such smoothing.
        """
        super().__init__()
        if first < 0 or vocabulary < 1 or not 0 <= label_smoothing <= 1:
            raise InvalidInput(
                f"a part of a head has first={first}, vocabulary={vocabulary} and label_smoothing={label_smoothing:g};"
                " expected 0 or more, 1 or more, and a share from 0 to 1"
            )
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.bias = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias)
        self.first = first
        self.rows = max(0, min(len(weight), vocabulary - first))
        """How many are no padding."""
        self._sharp, self._even = 1 - label_smoothing, label_smoothing / vocabulary

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """... × rows. To be overridden where something follows that takes each logit alone: a scale, a soft cap."""
        return linear(hidden, self.weight[: self.rows], None if self.bias is None else self.bias[: self.rows])

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The three numbers of each token.

        Args:
            hidden: ... × width, behind the model's last norm.
            targets: tokens, of the shape of `hidden` without its width.

        Returns:
            The largest logit, which has no gradient, the sum of exponentials and the target's logit, each of the targets' shape.
            With label smoothing the third is this part's share of the mean of all logits under the smoothed target.
        """
        statistics: Any = _Statistics
        numbers: tuple[torch.Tensor, ...] = statistics.apply(self.logits(hidden), targets - self.first, self._sharp, self._even)
        return numbers


class HeadJoin(nn.Module):
    """What brings the parts' numbers together, as a last stage."""

    takes_state = False

    def forward(self, *numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For each token the logarithm of the sum of exponentials over the whole vocabulary, and the target's logit.

        Args:
            numbers: the three of one part after those of another, in any order of parts.

        Raises:
            InvalidInput: these are not three for each part.
        """
        if not numbers or len(numbers) % 3:
            raise InvalidInput(f"the join of a split head got {len(numbers)} tensors; expected three of each HeadPart")
        largest, sums, own = (torch.stack(numbers[at::3]) for at in range(3))
        top = largest.amax(0)
        return (sums * (largest - top).exp()).sum(0).log() + top, own.sum(0)


def split_cross_entropy(
    joined: tuple[torch.Tensor, torch.Tensor],
    targets: torch.Tensor,
    *,
    vocabulary: int,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> torch.Tensor:
    """`torch.nn.functional.cross_entropy` of what a `HeadJoin` gives: a `loss_fn`, with `functools.partial`.

    Args:
        joined: of each token, what `HeadJoin` gives.
        targets: of the same shape.
        vocabulary: how many tokens there are. A target that is none of them makes the loss NaN, as no part has found it.
        ignore_index: the target of tokens that do not count.
        reduction: over the tokens that count; "none": the loss of each, 0 for those that do not count.

    Raises:
        InvalidInput: there is no such reduction.
    """
    if reduction not in ("mean", "sum", "none"):
        raise InvalidInput(f"found the reduction {reduction!r} of a split head's loss, expected mean, sum or none")
    log_sums, own = joined
    counted = targets != ignore_index
    losses = (log_sums - own).where((targets >= 0) & (targets < vocabulary), torch.nan).where(counted, 0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / counted.sum()


class _Statistics(torch.autograd.Function):
    """The numbers of a part's logits. The backward computes the exponentials again, so that the logits alone are kept."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, sharp: float, even: float) -> tuple[torch.Tensor, ...]:
        kind, rows = torch.promote_types(logits.dtype, torch.float32), logits.shape[-1]
        if rows:
            has = (targets >= 0) & (targets < rows)
            places = targets.where(has, 0).unsqueeze(-1)
            largest = logits.amax(-1).to(kind)
            sums = (logits - largest.unsqueeze(-1)).exp_().sum(-1)
            own = logits.gather(-1, places).squeeze(-1).to(kind).where(has, 0) * sharp
            if even:
                own += logits.sum(-1, dtype=kind) * even
            ctx.save_for_backward(logits, largest, places, has)
        else:
            largest = torch.full(targets.shape, -torch.inf, dtype=kind, device=logits.device)
            sums, own = largest.exp(), largest.exp()
        ctx.mark_non_differentiable(largest)
        ctx.empty = None if rows else logits.shape
        ctx.sharp, ctx.even = sharp, even
        return largest, sums, own

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _, of_sums, of_own = gradients
        if ctx.empty is not None:
            return of_sums.new_zeros(ctx.empty), None, None, None
        logits, largest, places, has = ctx.saved_tensors
        result = (logits - largest.unsqueeze(-1)).exp_().mul_(of_sums.unsqueeze(-1))
        result.scatter_add_(-1, places, (of_own * ctx.sharp).where(has, 0).unsqueeze(-1))
        if ctx.even:
            result += (of_own * ctx.even).unsqueeze(-1)
        return result.to(logits.dtype), None, None, None

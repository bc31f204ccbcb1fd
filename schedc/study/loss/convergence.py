r"""How many updates reach a convergence error where stages read weights of some updates ago: DynPipe, section IV.B, equations 1–3.

Takes what is known of the loss function (`ConvergenceConstants`, given or estimated from measured steps), a learning rate, an error
and the delay of each stage in updates; gives an `UpdatesNeeded`.

The update is w(t+1) = w(t) − η g(t), where g(t) is a stochastic gradient at v(t), whose stage s has the weights w_s(t − d_s): d_s
is the stage's delay (equation 1: d_s = S − s for stages 1..S, where the paper writes w(t) for both w and v). Assumptions: f has an
L-Lipschitz gradient; E g(t) = ∇f(v(t)); E‖g(t)‖² ≤ ξ², of which stage s has at most ξ_s², with Σ ξ_s² = ξ²; the variance of g(t)
is at most σ²/B; ηL ≤ 1.

The bound, for any delays. Smoothness gives f(w(t+1)) ≤ f(w(t)) − η⟨∇f(w(t)), g(t)⟩ + ½Lη²‖g(t)‖². In the mean, with
2⟨a, b⟩ = ‖a‖² + ‖b‖² − ‖a − b‖² and E‖g(t)‖² ≤ E‖∇f(v(t))‖² + σ²/B, and since ηL ≤ 1 lets −½η‖∇f(v(t))‖² pay for ½Lη²‖∇f(v(t))‖²:

    E f(w(t+1)) ≤ E f(w(t)) − ½η E‖∇f(w(t))‖² + ½η L² E‖w(t) − v(t)‖² + ½η σ²/B.

The distance is a sum over stages, w_s(t) − w_s(t − d_s) = −η Σ_{j=1..d_s} g_s(t − j), and a sum of d_s vectors has at most d_s
times the sum of their squares (Cauchy–Schwarz): E‖w(t) − v(t)‖² ≤ η² Σ_s d_s² ξ_s². Summed over t = 0..T−1, divided by ½ηT:

    (1/T) Σ E‖∇f(w(t))‖² ≤ 2 (f(w(0)) − f(w(T))) / (Tη) + η² L² ξ² D + σ²/B,    D = Σ_s (ξ_s²/ξ²) d_s².

D is `staleness`: a mean of the squared delays, weighted by each stage's share of the gradient's second moment. Whatever the shares
are, it is at most the largest delay squared. Under 2BW all delays are 1, so D = 1; without delay D = 0. The paper's theorem 1 has
2 S³ in place of D and 2σ²/B in place of σ²/B; it is the weaker: even where each stage had all of ξ², delays S − 1..0 give
Σ d_s² = (S − 1) S (2S − 1) / 6 ≤ S³ / 3. With S = 1, where nothing is delayed, the paper still subtracts 2 η² L² ξ².

As in equation 3, the error ε is a threshold of the mean squared gradient, not of the loss; f(w(T)) is taken as 0, and the variance
term is left out. So two batches of different size look the same here. Momentum and adaptive step sizes are not in the theory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.location import Location, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.formats.convergence_file import MeasuredConvergence


MOST_UPDATES = 10**18
"""More are as none: at a nanosecond each they take 31 years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceConstants:
    """What the theory must know of a loss function."""

    initial_loss: float
    """f(w(0)), above 0."""
    smoothness: float
    """L, the Lipschitz constant of the gradient, above 0."""
    second_moment: float
    """ξ², a bound of E‖g‖², above 0."""

    def __post_init__(self) -> None:
        """Refuse what is not above 0."""
        for name in ("initial_loss", "smoothness", "second_moment"):
            _above_zero(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpread:
    """What samples of a constant say."""

    samples: int
    least: float
    median: float
    mean: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedConstants:
    """The constants, from measured steps, with the spread of the samples behind them."""

    constants: ConvergenceConstants
    smoothness: SampleSpread
    """Of ‖g(t) − g(t−1)‖ / ‖w(t) − w(t−1)‖. Each is at most L, so the constant is the largest; steps on different batches make it
    too large, as their gradients differ by more than the weights' change explains."""
    second_moment: SampleSpread
    """Of ‖g(t)‖²; the constant is the mean, as ξ² bounds an expectation."""

    def __str__(self) -> str:
        """The constants with their spread, for people."""
        said = []
        for name, value, spread in (
            ("L", self.constants.smoothness, self.smoothness),
            ("ξ²", self.constants.second_moment, self.second_moment),
        ):
            between = f"{spread.least:.3g} to {spread.largest:.3g}, median {spread.median:.3g}"
            said.append(f"{name} {value:.3g} ({spread.samples} samples: {between})")
        return f"f(w₀) {self.constants.initial_loss:.3g}, {', '.join(said)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatesNeeded:
    """How many updates reach an error."""

    updates: int | None
    """None: no number of updates does."""
    staleness_error: float
    """η² L² ξ² D: the part of the error that delays cause and no number of updates removes."""
    why_not: str = ""
    """Why no number does."""
    warning: str = ""
    """What the theory assumes and is not so."""


def staleness(delays: Sequence[int], shares: Sequence[float] | None = None) -> float:
    """D of the bound (see the module): the squared delays, weighted by the stages' shares of the gradient's second moment.

    Args:
        delays: of each stage, in updates.
        shares: of each stage, summing to 1; None: not known, so all of it may be where the delay is largest.

    Raises:
        InvalidInput: a delay is negative, or the shares are not one for each stage that sum to 1.
    """
    if not delays or min(delays) < 0:
        raise Location("delays").refuse(show(list(delays)), "one delay for each stage, each of at least 0 updates")
    if shares is None:
        return float(max(delays) ** 2)
    if len(shares) != len(delays) or not all(share >= 0 for share in shares) or not math.isclose(sum(shares), 1.0, rel_tol=1e-6):
        raise Location("shares").refuse(show(list(shares)), f"{len(delays)} numbers of at least 0 that sum to 1")
    return sum(share * delay**2 for share, delay in zip(shares, delays, strict=True))


def updates_needed(
    constants: ConvergenceConstants, *, learning_rate: float, error: float, staleness_factor: float
) -> UpdatesNeeded:
    """Equation 3, with a factor D in place of 2 S³: the least T with 2 f(w(0)) / (Tη) + η² L² ξ² D ≤ ε.

    Args:
        constants: of the loss function.
        learning_rate: η, above 0.
        error: ε, above 0: what the mean of E‖∇f‖² over the updates is to be at most, variance aside.
        staleness_factor: D, of `staleness`; the paper has 2 S³.

    Raises:
        InvalidInput: a value is not above 0, or the factor is negative.
    """
    rate, allowed = _above_zero("learning_rate", learning_rate), _above_zero("error", error)
    if not 0 <= staleness_factor < math.inf:
        raise Location("staleness_factor").refuse(show(staleness_factor), "a number of at least 0")
    stale = 0.0
    if staleness_factor:  # products of what is too large are infinite, where powers of it are errors
        stale = (rate * rate) * (constants.smoothness * constants.smoothness) * constants.second_moment * staleness_factor
    warning = rate_warning(constants, rate)
    if stale >= allowed:
        why_not = (
            f"the delays alone cause an error of {stale:.3g}, which is not below {allowed:.3g}; a lower learning rate causes less"
        )
        return UpdatesNeeded(updates=None, staleness_error=stale, why_not=why_not, warning=warning)
    each = rate * (allowed - stale)  # 0 where it is too small for a number
    needed = 2 * constants.initial_loss / each if each else math.inf
    if needed > MOST_UPDATES:
        return UpdatesNeeded(updates=None, staleness_error=stale, why_not="more updates than can be counted", warning=warning)
    return UpdatesNeeded(updates=max(1, math.ceil(needed)), staleness_error=stale, warning=warning)


def rate_warning(constants: ConvergenceConstants, learning_rate: float) -> str:
    """What the theory assumes of the learning rate and is not so; empty: it is."""
    product = learning_rate * constants.smoothness
    return "" if product <= 1 else f"the theory holds for η L of at most 1, and it is {product:.3g}"


def estimated_constants(measured: MeasuredConvergence, file: str = "convergence.json") -> EstimatedConstants:
    """The constants that measured steps suggest: f(w(0)) is the first loss.

    Raises:
        InvalidInput: no two steps follow each other with other weights, a constant is not above 0 or infinite; names `file`.
    """
    place = Location(file) / "steps"
    ratios = [
        math.sqrt(step.gradient_change_sq / step.weight_change_sq)
        for step in measured.steps
        if step.gradient_change_sq is not None and step.weight_change_sq
    ]
    if not ratios or max(ratios) <= 0:
        raise place.refuse("no two steps in a row whose weights and gradients differ", "some, for the smoothness of the loss")
    moments = [step.gradient_sq for step in measured.steps]
    for name, value in (("gradient_change_sq / weight_change_sq", max(ratios)), ("gradient_sq", fmean(moments))):
        if not 0 < value < math.inf:
            raise place.refuse(f"{name} of {show(value)}", "a number above 0")
    loss = measured.steps[0].loss
    if not loss > 0:
        raise (place / 0 / "loss").refuse(show(loss), "a loss above 0, as the theory takes 0 for the lowest")
    return EstimatedConstants(
        constants=ConvergenceConstants(initial_loss=loss, smoothness=max(ratios), second_moment=fmean(moments)),
        smoothness=_spread(ratios),
        second_moment=_spread(moments),
    )


def _spread(samples: Sequence[float]) -> SampleSpread:
    return SampleSpread(samples=len(samples), least=min(samples), median=median(samples), mean=fmean(samples), largest=max(samples))


def _above_zero(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise InvalidInput(f"{name}: found {show(value)}, expected a number above 0")
    return value

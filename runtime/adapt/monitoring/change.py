"""A sequential test for a change of level, with a stated rate of false alarms and no assumption that noise is Gaussian.

One number comes per step: how long a link's messages took, or an op. While nothing changes, these are draws from one unknown
distribution. The test learns a pool of them, and then takes every later one as evidence:

- Let u be the distance of the pool's k-th largest of n from its median b, k about 5 % of n, and at least what counts as a change.
  By Clopper and Pearson, with probability 1 - eta the next one is above b + u with a probability of at most q, a quantile of a
  Beta distribution. So (1 if x > b + u, else 0) / q is an e-value: its mean is at most 1.
- Beyond the pool's largest (k = 1), it is assumed that being r times as far away is at most 1 / r^2 as likely. Then the mean of
  r^a is at most 2 q / (2 - a), so (1 - a / 2) r^a / q is an e-value, too, as long as a < 2; what is less than counts as a change
  gives 0. Steps' quartiles of several messages have far lighter tails.

e = 1 - LAMBDA + LAMBDA (mean of the two) has a mean of at most 1, whatever came before; also where it is cut off. R := (1 + R) e
(Shiryaev and Roberts) then has a mean of at most t after t values, and by Doob's inequality exceeds c within T values with a
probability of at most T / c. Half of the rate is for that, half for the eta of all calibrations. The same downwards. (Shin, Ramdas,
Rinaldo: E-detectors, 2022.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LAMBDA = 0.8
"""What of the evidence is staked on a change: a step that shows none divides R by 5."""
RARE = 0.05
"""About which share of the pool is beyond the nearer threshold: this many steps may stall without making the test blind."""
POWER = 1.8
"""a. Near 2, values that are very far away say the most."""
TWO = 1.5
"""No value gives more evidence than this times the root of what an alarm needs: two at least have to show a change."""
NEAREST = 0.05
"""The pool's farthest is taken to be at least this share of the least change that counts away: a series that never varies is not
upset by nothing."""
DOUBT = 16.0
"""From this much evidence on it is worth looking closer."""
FIRST, CALIBRATIONS = 16, 7
"""The pool is learned at 16 steps, 32, 64, … 1024."""
POOL = FIRST << (CALIBRATIONS - 1)


@dataclass(frozen=True, slots=True)
class Rate:
    """How often all tests together may give a false alarm."""

    tests: int
    """How many share it."""
    probability: float = 0.01
    """Of any false alarm of any of them."""
    steps: int = 10_000
    """Within this many, each with two values at most."""

    @property
    def threshold(self) -> float:
        """What R must reach, each way; a step gives a value, and where there is doubt pings another."""
        return 8 * self.tests * self.steps / self.probability

    @property
    def eta(self) -> float:
        """How often a calibration of one test, one way and one threshold may be wrong."""
        return self.probability / (8 * self.tests * CALIBRATIONS)


class ChangeTest:
    """The test of one series."""

    def __init__(self, rate: Rate, *, least: float, relative: float = 0.1, pool: Sequence[float] = ()) -> None:
        """Begin to learn.

        A change by less than `least`, or by less than this share of the level (`relative`), does not count.
        `pool` are values known before, of which the last `POOL` count.
        """
        self._rate = rate
        self._least = least
        self._relative = relative
        self._pool = list(pool[-POOL:])
        self._learned = 0
        self._evidence = [0.0, 0.0]  # upwards, downwards
        self._doubtful = 0  # the last values of the pool, which look like a change
        self._known: _Thresholds | None = None
        self._waiting: _Thresholds | None = None
        self._learn()

    @property
    def level(self) -> float:
        """The median of the pool; not a number until 16 values are known."""
        return math.nan if self._known is None else self._known.level

    @property
    def pool(self) -> Sequence[float]:
        """What has been learned from."""
        return self._pool

    def add(self, value: float) -> int:
        """Take the next step's value; 1: the level has risen, -1: it has fallen, 0: nothing says so.

        After an alarm the test begins to gather evidence anew, with what it has learned.
        """
        alarm = self.weigh(value)
        if not alarm and len(self._pool) < POOL:
            self._pool.append(value)
            self._doubtful = self._doubtful + 1 if self.suspicious else 0
            self._learn()
        return alarm

    def weigh(self, value: float) -> int:
        """Take a value as evidence that is not learned from; gives what `add` gives."""
        alarm = 0
        if (known := self._known) is not None:
            most = TWO * math.sqrt(self._rate.threshold)
            for way, sign in enumerate((1, -1)):
                distance = sign * (value - known.level)
                near = (distance > known.near[way]) / known.near_share
                far = (1 - POWER / 2) * (distance / known.far[way]) ** POWER / known.far_share if self._far(value, sign) else 0.0
                self._evidence[way] = (1 + self._evidence[way]) * min(most, 1 - LAMBDA + LAMBDA * (near + far) / 2)
                if self._evidence[way] >= self._rate.threshold:
                    alarm = sign
        if alarm:
            self.changed()
        return alarm

    def _far(self, value: float, sign: int) -> bool:
        """Whether it is farther away than all that is known, by as much as counts."""
        known, way = self._known, int(sign < 0)
        return known is not None and sign * (value - known.level) > max(known.near[way], known.far[way])

    def far(self, value: float) -> bool:
        """Whether it is farther away than all that is known, by as much as counts, either way."""
        return self._far(value, 1) or self._far(value, -1)

    def beyond(self, value: float) -> int:
        """1: the value is above what is usual, by as much as counts; -1: it is below; 0: neither, or too little is known."""
        known = self._known
        if known is None:
            return 0
        return (value - known.level > known.near[0]) - (known.level - value > known.near[1])

    @property
    def suspicious(self) -> bool:
        """Whether the last steps look like a change."""
        return max(self._evidence) > 1.0

    @property
    def doubtful(self) -> bool:
        """Whether the last steps look so much like a change that it is worth looking closer."""
        return max(self._evidence) >= DOUBT

    def changed(self) -> None:
        """Gather evidence anew: the level is another one, which is not learned from."""
        self._evidence = [0.0, 0.0]
        if self._doubtful:
            del self._pool[-self._doubtful :]
            self._doubtful = self._learned = 0
            self._learn()

    def forgive(self) -> None:
        """Gather evidence anew: what looked like a change was none."""
        self._evidence = [0.0, 0.0]

    def _learn(self) -> None:
        """Take thresholds from the pool when it has 16 values, 32, …; while a change is suspected, the new ones wait."""
        known = len(self._pool)
        size = FIRST << max(0, (known // FIRST).bit_length() - 1)
        if known >= FIRST and size > self._learned:
            self._learned = size
            values = sorted(self._pool)
            level = median(values)
            count = 1 + math.floor(RARE * known)
            least = max(self._least, self._relative * abs(level))
            nearest = max(NEAREST * self._least, 1e-9 * abs(level))
            self._waiting = _Thresholds(
                level,
                (max(least, values[-count] - level), max(least, level - values[count - 1])),
                (max(nearest, values[-1] - level), max(nearest, level - values[0])),
                most_likely_share(count, known, self._rate.eta),
                most_likely_share(1, known, self._rate.eta),
            )
        if self._waiting is not None and not self.suspicious:
            self._known, self._waiting = self._waiting, None


class _Thresholds(NamedTuple):
    """What has been learned; distances from the level upwards and downwards."""

    level: float
    near: tuple[float, float]
    far: tuple[float, float]
    near_share: float
    """How likely it is at most that a value is beyond the near threshold."""
    far_share: float


@cache
def most_likely_share(count: int, known: int, eta: float) -> float:
    """The share of a distribution that is beyond the `count`-th largest of `known` draws, but for a probability of `eta` at most.

    It is Beta(count, known + 1 - count), whose upper quantile this is: fewer than `count` of `known` draws are beyond a
    share of q with probability eta.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        fewer = sum(math.comb(known, hits) * share**hits * (1 - share) ** (known - hits) for hits in range(count))
        low, high = (share, high) if fewer > eta else (low, share)
    return high

"""How fast a rank computes, from its ops' own durations, which waiting for others is no part of; pure.

The median of a step's ops of one kind and stage passes over what the machine slows down now and then. What is compared with is this
rank's own first steps, and not the plan: a profile that is off by a few percent is no change. While there is doubt, the first ops
of a step are evidence as all are: it is assumed that their median is no likelier to be far away.

What is predicted of the rank's speed (`schedc.runtime.interference`) is a series of its own, with a test of its own. A change of it
counts for all kinds, on credit: the steps that are measured next confirm it, or it counts no more.
"""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import fmean, median
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op
from schedc.runtime.adapt.monitoring.change import ChangeTest, Rate

if TYPE_CHECKING:
    from collections.abc import Iterable


LEAST = 0.05
"""Of the usual duration."""
BACK = 2 * LEAST
"""As near to the usual duration a rank that was slower is as usual again: more must not be made of few values."""
RECENT = 3
POOLED = 512
"""How many of the values before a change say how much those after it vary."""
CREDIT = 4
"""For how many measured steps a change that was predicted holds without one of them showing it; where they are in doubt, longer."""
EARLY_OPS = 3
"""How many ops of a kind are evidence before the step has ended."""


class SpeedWatch:
    """One rank's ops."""

    def __init__(self, rate: Rate) -> None:
        """Know nothing yet."""
        self._rate = rate
        self._tests: dict[Kind, ChangeTest] = {}
        self._recent: defaultdict[Kind, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        """The last values since there is doubt."""
        self._usual_ns: dict[tuple[Kind, int, object], float] = {}
        self._factor: dict[Kind, float] = {}
        self._predicted = ChangeTest(rate, least=LEAST, relative=LEAST)
        self._predicted_recent: deque[float] = deque(maxlen=RECENT)
        self._predicted_factor = 1.0
        """What is predicted, to what was predicted at first."""
        self._credit = 0
        """For how many more steps that counts."""
        self.alarms = 0

    @property
    def known(self) -> bool:
        """Whether anything has been learned yet."""
        return any(test.level == test.level for test in self._tests.values())

    def slowdown(self) -> dict[Kind, float]:
        """By kind, F, B and W, what durations are multiplied by; nothing for a kind that has not certainly changed."""
        found = self.measured()
        if self._credit > 0:
            for kind in (Kind.F, Kind.B, Kind.W):
                found.setdefault(kind, self._predicted_factor)
        return found

    def measured(self) -> dict[Kind, float]:
        """The same, by what was measured alone."""
        found: dict[Kind, float] = {kind: factor for kind, factor in self._factor.items() if kind is not Kind.BW}
        if Kind.BW in self._factor:
            for kind in (Kind.B, Kind.W):
                found.setdefault(kind, self._factor[Kind.BW])
        return found

    def add_prediction(self, ratio: float) -> None:
        """Take what is predicted: how many times as long as alone ops take now."""
        alarm, test = self._predicted.add(ratio), self._predicted
        if not alarm and not test.doubtful:
            self._predicted_recent.clear()
            return
        self._predicted_recent.append(ratio)
        if alarm:
            self.alarms += 1
            level = median(self._predicted_recent)
            first = test.level / self._predicted_factor
            changed = abs(level / first - 1) > (LEAST if self._predicted_factor == 1.0 else BACK)
            self._predicted_factor = level / first if changed else 1.0
            # What has been measured already wins: a rank that is known to be slow is well again when its ops are.
            self._credit = CREDIT if changed and not self._factor else 0
            self._predicted_recent.clear()
            pool = [level * value / test.level for value in test.pool[-POOLED:]]
            self._predicted = ChangeTest(self._rate, least=LEAST, relative=LEAST, pool=pool)

    def step(self, durations_ns: Iterable[tuple[Op, int]]) -> None:
        """Take what the ops of one step took."""
        found: defaultdict[tuple[Kind, int, object], list[int]] = defaultdict(list)
        for op, duration_ns in durations_ns:
            found[op.kind, op.stage, op.part].append(duration_ns)
        self._meet({kind for kind, _, _ in found})
        ratios: defaultdict[Kind, list[float]] = defaultdict(list)
        for key, values in found.items():
            usual_ns = self._usual_ns.get(key)
            if usual_ns is None:
                usual_ns = self._usual_ns[key] = max(1.0, median(values)) / self._factor.get(key[0], 1.0)
            ratios[key[0]].append(median(values) / usual_ns)
        for kind, values_of_kind in ratios.items():
            value = median(values_of_kind)
            test = self._tests.setdefault(kind, ChangeTest(self._rate, least=LEAST, relative=LEAST))
            self._take(kind, value, test.add(value))
        if self._credit > 0 and (self._credit > 1 or not self.doubtful):
            self._credit -= 1

    @property
    def doubtful(self) -> bool:
        """Whether it is worth looking at the first ops of a step."""
        return any(test.doubtful for test in self._tests.values())

    def early(self, durations_ns: Iterable[tuple[Op, int]]) -> None:
        """Take what the first ops of a step took, which `step` is going to get again."""
        ratios: defaultdict[Kind, list[float]] = defaultdict(list)
        for op, duration_ns in durations_ns:
            usual_ns = self._usual_ns.get((op.kind, op.stage, op.part))
            if usual_ns is not None:
                ratios[op.kind].append(duration_ns / usual_ns)
        for kind, values in ratios.items():
            test = self._tests.get(kind)
            if test is not None and test.doubtful and len(values) >= EARLY_OPS:
                self._take(kind, median(values), test.weigh(median(values)))

    def _meet(self, kinds: set[Kind]) -> None:
        """Where another plan has other kinds (B and W apart, or fused), they take over what is known of the rank's speed."""
        factors = self.measured()
        for kind in kinds - self._tests.keys():
            alike = (Kind.B, Kind.W) if kind is Kind.BW else (kind,)
            factor = fmean(factors.get(other, 1.0) for other in alike)
            if factor != 1.0:
                self._factor[kind] = factor
        for kind in self._tests.keys() - kinds if kinds else ():
            for known in (self._tests, self._recent, self._factor):
                known.pop(kind, None)

    def _take(self, kind: Kind, ratio: float, alarm: int) -> None:
        """Act on what the test says of a value. Where one kind has changed, others that are in doubt have, too."""
        if not alarm and not self._tests[kind].doubtful:
            self._recent[kind].clear()
            return
        self._recent[kind].append(ratio)
        if alarm:
            self._change(kind)
            for other, test in list(self._tests.items()):
                if test.doubtful and test.beyond(median(self._recent[other])) == alarm:
                    self._change(other)

    def _change(self, kind: Kind) -> None:
        """The kind takes another time, or the usual one."""
        self.alarms += 1
        self._credit = 0  # from now on what is measured counts
        test, level = self._tests[kind], median(self._recent[kind])
        known = self._factor.pop(kind, 1.0)
        first = test.level / known
        if abs(level / first - 1) > (LEAST if known == 1.0 else BACK):
            self._factor[kind] = level / first
        self._recent[kind].clear()
        self._tests[kind] = ChangeTest(
            self._rate, least=LEAST, relative=LEAST, pool=[level * value / test.level for value in test.pool[-POOLED:]]
        )

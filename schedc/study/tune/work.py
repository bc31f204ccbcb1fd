"""A candidate while the search works on it: its row, its problem and plan, and its bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import Plan
    from schedc.study.loss.time_to_loss import LossRow
    from schedc.study.tune.candidates import CandidateState, TuneRow
    from schedc.study.tune.problems import CandidateProblem

FEW_OPS, LARGE = 4_000, 1.03
"""Each doubling of the compute ops from these on, which take time to plan, counts as this much longer."""
BY_PLAN = 1.2
"""Gathers that are ops of the plan count as this much longer: they take long to plan, and `about_ns` does not know what waits."""
ALIKE = 1.02
"""Candidates that differ in sharding or backwards alone take about as long: each one after the first counts as this much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known now."""

    doing: str
    done: int
    total: int
    best: TuneRow | None


@dataclass(slots=True)
class Work:
    """A candidate while it is worked on."""

    row: TuneRow
    made: CandidateProblem | None = None
    plan: Plan | None = None
    about_ns: int = 0
    """What the step, or all until the loss, may take; only for the order."""
    ways: dict[bool, tuple[int, int]] = field(default_factory=dict)
    """With a loss: the fewest updates, and a least period of theirs, without delay (False) and with some."""
    reached: LossRow | None = None
    """With a loss: of the plan."""

    @property
    def ops(self) -> int:
        """Compute ops, as `Problem.num_ops`."""
        candidate = self.row.candidate
        return (3 if candidate.backward == "split" else 2) * candidate.stages * candidate.microbatches

    @property
    def kind(self) -> tuple[bool, bool]:
        """Whether steps overlap, and whether there is a pipeline: verdicts compare the best of each kind."""
        return self.overlaps, self.row.candidate.ranks > 1

    @property
    def overlaps(self) -> bool:
        """Whether steps overlap."""
        return self.row.candidate.versions is not None

    def end(self, state: CandidateState, why_not: str) -> None:
        """There is no plan."""
        self.row.state, self.row.why_not = state, why_not

    def raise_bound(self, bound_ns: int) -> None:
        """No schedule of the candidate has a shorter step than this, either."""
        row = self.row
        row.bound_ns = max(row.bound_ns or 0, bound_ns)
        row.time_to_loss_bound_ns = min(self.times_ns().values(), default=None)

    def times_ns(self) -> dict[bool, int]:
        """With a loss: bounds of the time to it, without delay (False) and with some."""
        bound_ns, update_ns = self.row.bound_ns or 0, self.row.update_ns or 0
        return {late: updates * (max(least_ns, bound_ns) + update_ns) for late, (updates, least_ns) in self.ways.items()}


def in_order(works: Sequence[Work]) -> list[Work]:
    """As they are tried: first what may be fastest, and is planned soon, of many shapes."""
    longer = {id(work): work.about_ns * LARGE ** (work.ops // FEW_OPS).bit_length() for work in works}
    for work in works:
        longer[id(work)] *= BY_PLAN if work.row.candidate.gathers == "plan" else 1
    found, alike = sorted(works, key=lambda work: longer[id(work)]), Counter[tuple[object, ...]]()
    for work in found:
        each = work.row.candidate
        shape = each.ranks, each.degrees, each.microbatch_size, each.placement, each.chunks, each.across, each.versions
        longer[id(work)] *= ALIKE ** alike[shape]
        alike[shape] += 1
    return sorted(found, key=lambda work: longer[id(work)])

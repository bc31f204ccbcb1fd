"""Wall-clock time to a loss: how long an update takes, times how many updates are needed, for ways to run one training job.

Takes candidates, each with the time of an update and the delay of each stage; a synchronous one has no delay, and its makespan is
that time. Gives a `TimeToLoss`: the candidates by time, which is the fastest, and whether asynchrony pays. How many updates are
needed says the theory (`convergence`), or a table of measurements (`delay_table`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.location import Location, show
from schedc.study.loss.convergence import ConvergenceConstants, estimated_constants, rate_warning, staleness, updates_needed
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from schedc.ir import Plan
    from schedc.study.loss.delay_table import DelayTable

MOST_TOKENS = 10**18
"""Of a run; so many nanoseconds has an update at most."""
MOST_DELAY = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCandidate:
    """One way to run the training job."""

    name: str
    period_ns: int
    """From one update to the next: of a synchronous plan its makespan, of an asynchronous one its period."""
    delays: tuple[int, ...]
    """Of each stage, in updates: all 0 where it is synchronous."""
    shares: tuple[float, ...] | None = None
    """Of each stage, of the gradient's second moment, if known; the theory is sharper with them."""
    tokens: int = 1
    """Of one update; samples or any other unit do as well, the same for all candidates."""

    def __post_init__(self) -> None:
        """Refuse what takes no time, delays that are none, and what cannot be counted."""
        for key, value in (("period_ns", self.period_ns), ("tokens", self.tokens)):
            if not 1 <= value <= MOST_TOKENS:
                raise (Location(self.name) / key).refuse(show(value), f"a whole number of at least 1 and at most {MOST_TOKENS}")
        if not self.delays or min(self.delays) < 0 or max(self.delays) > MOST_DELAY:
            expected = f"one delay for each stage, each of at least 0 updates and at most {MOST_DELAY}"
            raise (Location(self.name) / "delays").refuse(show(self.delays), expected)

    @classmethod
    def of_plan(cls, plan: Plan, *, name: str | None = None, update_ns: int = 0, tokens: int = 1) -> LossCandidate:
        """The candidate that a plan is: of one step that ends, or of a period of steps that overlap, with its delays.

        Args:
            plan: the plan.
            name: None: the plan's, and which weights its ops read where steps overlap.
            update_ns: of a step that ends, what the optimizer's step takes besides; a period has its updates in it.
            tokens: of one update.

        Raises:
            InvalidInput: it is a run of several steps, or takes no time.
        """
        updates = plan.problem.updates
        if updates is not None and not updates.is_period:
            raise InvalidInput(f"{plan.name}: found the plan of a run of steps, expected that of one period or of one step")
        return cls(
            name=name or (plan.name if updates is None else f"{plan.name}, {updates.versions}"),
            period_ns=plan.certificate.makespan_ns + (update_ns if updates is None else 0),
            delays=plan.certificate.delays or (0,) * len(plan.problem.stages),
            tokens=tokens,
        )

    @property
    def is_synchronous(self) -> bool:
        """Whether no stage reads old weights."""
        return not any(self.delays)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """A candidate, and how long it takes."""

    candidate: LossCandidate
    updates: int | None
    """How many it needs; None: not known, or no number suffices. So `time_ns`."""
    time_ns: int | None
    basis: str
    """What the number of updates rests on; where there is none, why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLoss:
    """The candidates by time, those without one last."""

    rows: tuple[LossRow, ...]
    source: str
    """Of the numbers of updates."""

    @property
    def fastest(self) -> LossRow | None:
        """The one that takes least; None: none is known to reach the loss."""
        return self.rows[0] if self.rows[0].time_ns is not None else None

    @property
    def asynchrony_pays(self) -> bool | None:
        """Whether a candidate with delays takes less than all without; None: those to compare are not both there."""
        kinds = [row.candidate.is_synchronous for row in self.rows if row.time_ns is not None]
        return not kinds[0] if len(set(kinds)) == 2 else None  # of equal times the synchronous one is first

    @property
    def verdict(self) -> str:
        """Which is the fastest, and whether asynchrony pays, with the numbers, on one line."""
        best = self.fastest
        if best is None:
            first = self.rows[0]
            return f"none of {len(self.rows)} candidates is known to reach the loss: {first.candidate.name}: {first.basis}"
        if self.asynchrony_pays is None:
            kind = "without delays" if not best.candidate.is_synchronous else "with delays"
            return f"{_said(best)} is the fastest; there is none {kind} to compare with that is known to reach the loss"
        other = next(row for row in self.rows if row.candidate.is_synchronous is not best.candidate.is_synchronous)
        pays = "" if self.asynchrony_pays else "asynchrony does not pay: "
        of_kind = "synchronous" if self.asynchrony_pays else "asynchronous"
        return f"{pays}{_said(best)} is the fastest; the best {of_kind} one, {_said(other)}, takes {_times(other, best)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """DynPipe's bound, for each stage's own delay, is the number of updates (`convergence`)."""

    constants: ConvergenceConstants
    learning_rate: float
    """Of all candidates."""
    error: float
    """That the mean squared gradient reaches."""
    measured: str = ""
    """Where the constants were estimated: what of."""

    @property
    def source(self) -> str:
        """Of the numbers of updates."""
        rate = f"theory (DynPipe, equation 3) at a learning rate of {self.learning_rate:g}"
        return "; ".join(part for part in (rate, self.measured, rate_warning(self.constants, self.learning_rate)) if part)

    def row(self, candidate: LossCandidate) -> LossRow:
        """How long a candidate takes."""
        factor = staleness(candidate.delays, candidate.shares)
        needed = updates_needed(self.constants, learning_rate=self.learning_rate, error=self.error, staleness_factor=factor)
        said = needed.why_not or f"{needed.staleness_error:.3g} of the error {self.error:.3g} are the delays'"
        return _row(candidate, needed.updates, "; ".join(part for part in (said, needed.warning) if part))

    def least_delays(self, stages: int) -> tuple[tuple[int, ...], ...]:
        """Delays of this many stages, not all 0, among which are those that need the fewest updates: more delay needs no fewer."""
        return ((1,) + (0,) * (stages - 1),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A table says how many tokens each candidate needs (`delay_table`)."""

    table: DelayTable
    optimizer: str
    """Of all candidates, by its name in the table."""
    tokens: int
    """That a run without delay needs until the loss, in the unit of the candidates'."""

    def __post_init__(self) -> None:
        """Refuse a number of tokens that is none, or that cannot be counted."""
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise Location("tokens").refuse(show(self.tokens), f"a whole number of at least 1 and at most {MOST_TOKENS}")

    @property
    def source(self) -> str:
        """Of the numbers of updates."""
        return f"{self.table.source or 'a table'}; {self.optimizer}"

    def row(self, candidate: LossCandidate) -> LossRow:
        """How long a candidate takes."""
        found = self.table.factor(self.optimizer, candidate.delays)
        if found.factor is None:
            return _row(candidate, None, found.basis)
        updates = max(1, math.ceil(found.factor * self.tokens / candidate.tokens))
        basis = found.basis if candidate.is_synchronous else f"{found.factor:.3g} times the tokens, {found.basis}"
        return _row(candidate, updates, basis)

    def least_delays(self, stages: int) -> tuple[tuple[int, ...], ...]:
        """Delays of this many stages, not all 0, among which are those with the fewest updates that the table knows."""
        return self.table.least_delays(self.optimizer, stages)


def theory_of(
    convergence: Path | str | ConvergenceConstants, *, error: float, learning_rate: float | None, place: Location | None = None
) -> Theory:
    """The theory with its constants; those in a convergence.json are estimated, and its learning rate holds where none is given.

    Raises:
        InvalidInput: the file cannot be used, or nobody says the learning rate, which belongs to `place`.
    """
    from schedc.formats.convergence_file import read_convergence

    constants, said = convergence, ""
    if not isinstance(constants, ConvergenceConstants):
        measured = read_convergence(constants)
        estimated = estimated_constants(measured, str(constants))
        constants, said = estimated.constants, str(estimated)
        learning_rate = measured.learning_rate if learning_rate is None else learning_rate
    if learning_rate is None:
        raise (Location("learning_rate") if place is None else place / "learning_rate").refuse("nothing", "that of the updates")
    return Theory(constants=constants, learning_rate=learning_rate, error=error, measured=said)


def times_to_loss(candidates: Iterable[LossCandidate], rule: Theory | Measurements) -> TimeToLoss:
    """How long each candidate takes.

    Args:
        candidates: by the theory with the same tokens of an update: it does not say what a larger batch gains.
        rule: what says how many updates each needs.

    Raises:
        InvalidInput: there is no candidate, two have one name, or a value is wrong; by the theory, two have other tokens.
    """
    candidates = [*candidates]
    _check(candidates)
    if isinstance(rule, Theory) and len({each.tokens for each in candidates}) > 1:
        other = next(each for each in candidates if each.tokens != candidates[0].tokens)
        expected = f"the {candidates[0].tokens} of {candidates[0].name}, as the theory does not say what a larger batch gains"
        raise (Location(other.name) / "tokens").refuse(str(other.tokens), expected)
    return TimeToLoss(rows=sorted_rows([rule.row(each) for each in candidates]), source=rule.source)


def _check(candidates: Sequence[LossCandidate]) -> None:
    names = [each.name for each in candidates]
    if not names or len(set(names)) < len(names):
        raise InvalidInput(f"candidates: found {', '.join(names) or 'none'}, expected one or more, each with a name of its own")


def _row(candidate: LossCandidate, updates: int | None, basis: str) -> LossRow:
    time_ns = None if updates is None else updates * candidate.period_ns
    return LossRow(candidate=candidate, updates=updates, time_ns=time_ns, basis=basis)


def sorted_rows(rows: Sequence[LossRow]) -> tuple[LossRow, ...]:
    """By time; of equal ones the synchronous first, as it needs least memory."""
    return tuple(sorted(rows, key=lambda row: (row.time_ns is None, row.time_ns or 0, not row.candidate.is_synchronous)))


def _said(row: LossRow) -> str:
    assert row.time_ns is not None
    period, all_of_it = format_duration_ns(row.candidate.period_ns), long_duration(row.time_ns)
    return f"{row.candidate.name} ({row.updates:,} update{'s' * (row.updates != 1)} of {period}, {all_of_it})"


def long_duration(time_ns: int) -> str:
    """For people: hours, where there are some."""
    hours = time_ns / 3.6e12
    return f"{hours:.1f} h" if hours >= 1 else format_duration_ns(time_ns)


def _times(row: LossRow, best: LossRow) -> str:
    assert row.time_ns and best.time_ns and row.updates and best.updates
    period, updates = row.candidate.period_ns / best.candidate.period_ns, row.updates / best.updates
    return f"{row.time_ns / best.time_ns:.2f} times as long: {period:.2f} times the period, {updates:.2f} times the updates"

"""The Plan: what every rank executes, its compute queue and its communication queues, with costs and certificate.

It carries its Problem, so that a plan can be simulated and verified without the job it came from. `schedc.formats.plan`
writes and reads it as the plan file of the format document.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from schedc.ir.ops import Kind
from schedc.ir.problem import Objective, Problem
from schedc.ir.schedule import Collective, Parts, Schedule

if TYPE_CHECKING:
    from schedc.ir.ops import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One queue of transfers of a rank, with one peer in one direction. The sender's and the receiver's lists are equal.

    Transfers are named by the op that produced them: `F0.5` on rank 0's `send_next` and on rank 1's `recv_prev`; where stages are a
    graph, with the stage that they go to: `F0.5>3`.
    """

    name: str
    """`send_next`, `send_prev`, `recv_next`, `recv_prev` for neighbours on the ring of ranks; `send_r5`, `recv_r5` for others."""
    peer: int
    transfers: tuple[Op, ...]
    post_before: tuple[int, ...] = ()
    """Receiving channels only: per transfer, the index in the rank's compute queue before which its receive is posted."""

    @property
    def receives(self) -> bool:
        """Whether this is the receiving end."""
        return self.name.startswith("recv_")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The queues of one rank. They run beside each other: an op waits for its transfer, a transfer for its op."""

    rank: int
    compute: tuple[Op, ...]
    channels: tuple[Channel, ...] = ()
    collectives: tuple[Collective, ...] = ()


class BoundName(StrEnum):
    """Where a lower bound comes from."""

    WORK = "work"
    LINK = "link"
    RESIDENCY = "residency"
    WARM_UP = "warm-up"
    IDLE_GAPS = "idle-gaps"
    PATH = "path"
    LAYOUTS = "layouts"
    """Over all layouts that a job leaves open; whoever has the job can compute it again."""
    CPSAT = "cpsat"
    CPSAT_CUT = "cpsat-cut"
    """CP-SAT's word, too, and it holds for schedules that cut W as well."""
    MILP = "milp"

    @property
    def is_solvers(self) -> bool:
        """Whether it is a solver's word, for some schedules alone (`speaks_of`); else it can be computed again."""
        return self in (BoundName.CPSAT, BoundName.CPSAT_CUT, BoundName.MILP)

    @property
    def only(self) -> str:
        """For people, of which schedules alone it holds; empty: of all."""
        return "whose F and B are whole" if self is BoundName.CPSAT_CUT else "of whole blocks" if self.is_solvers else ""

    def speaks_of(self, parts: tuple[Parts, ...]) -> bool:
        """Whether it holds for schedules that cut such blocks, as it does for those of whole ones."""
        cut = {each.kind for each in parts} - ({Kind.W} if self is BoundName.CPSAT_CUT else set())
        return not (self.is_solvers and cut)


class Scope(StrEnum):
    """For what a lower bound holds."""

    SCHEDULE = "schedule"
    """Every schedule of the plan's problem."""
    LAYOUT = "layout"
    """Every schedule of every layout that the job left open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What the plan is worth, and how well that is known."""

    makespan_ns: int
    """Of a period, the period: from one step to the next."""
    lower_bound_ns: int
    """No schedule of the problem has a smaller objective; where a solver says so (`bound`), none of those that it speaks of."""
    gap: float
    """(objective − lower bound) / objective."""
    bound: BoundName
    bubble_ratio: float
    peak_activation_bytes: tuple[int, ...]
    """Per rank; where steps overlap, with the versions of weights beside the newest."""
    stage_span_ns: int = 0
    objective: Objective = Objective.MAKESPAN
    solver_log_sha256: str = ""
    """Where the bound is a solver's word, the digest of what it rests on."""
    scope: Scope = Scope.SCHEDULE
    """For which layouts the bound holds."""
    delays: tuple[int, ...] = ()
    """Per stage, where steps overlap: by how many updates the weights that a gradient was made with are behind, at most."""
    versions: tuple[int, ...] = ()
    """Per stage, where steps overlap: how many versions of its weights are held at once, at most."""

    @property
    def objective_ns(self) -> int:
        """What is minimized, as claimed."""
        return self.stage_span_ns if self.objective is Objective.STAGE_SPAN else self.makespan_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """How the plan came to be."""

    schedc: str
    method: str
    seed: int = 0
    job_sha256: str = ""
    reproducible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete plan for all ranks. That of a period has compute queues alone; its runs have channels (`schedc.lower.run`)."""

    problem: Problem
    ranks: tuple[RankPlan, ...]
    parts: tuple[Parts, ...] = ()
    certificate: Certificate
    made_by: MadeBy

    @property
    def name(self) -> str:
        """The job's name."""
        return self.problem.name

    @property
    def is_period(self) -> bool:
        """Whether it is one period of steps that overlap, of which a run of any number of steps can be made."""
        return self.problem.updates is not None and self.problem.updates.is_period

    def schedule(self) -> Schedule:
        """The compute orders, and where weights are sharded the collectives."""
        collectives = tuple(rank.collectives for rank in self.ranks) if self.problem.is_sharded else ()
        return Schedule(orders=tuple(rank.compute for rank in self.ranks), parts=self.parts, collectives=collectives)

"""Moving to another plan of the same stages between two steps: all ranks agree on the step, without a barrier.

Every rank *offers* its new plan, at any time, by a key in the job's store, and goes on training. One rank, the lowest that computes
losses, looks in each of its steps, when it sends the loss, whether the store has all offers. It says so with the loss, which all
ranks wait for anyway. Whoever has the loss of step s thus knows, at the same s, whether the offers are settled: if all ranks accept
the same plan, s + 1 is its first step everywhere; else nobody moves, and all read in the offers why. Nobody waits for a rank that
has not offered yet, however late it is.

A rank that offers before its step n moves with step n + 1, if it is the last: no loss of step n exists before every rank with a
stage has begun it, so the rank that looks sees all offers by then. Pipelines that move together look at the begin of a step, with
each other, and move with step n + 2 at the latest.

Pipelines may have to move with the same step. Stages may have collectives of their own with the same stages of other pipelines:
with tensor parallelism each pipeline holds a slice of every layer, with expert parallelism some experts. Two such pipelines may
not run different plans at once, whose orders differ. So their handshake is one: all their processes offer. Those that look in each
pipeline send each other what they see, at the beginning of every step, and only what all of them see is said with the losses.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from schedc.errors import CheckFailed, InvalidInput, SchedcError
from schedc.ir import Plan
from schedc.runtime.common.failure import TransferFailed, with_others
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.hooks import check_same_way
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.agreement import Offer, disagreement, plan_digest
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import torch.distributed as dist
    from torch._C._distributed_c10d import Store

    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.wiring import Wiring


class SwapGroup(Groups):
    """Connections to this process's peers: the processes of the same rank in the other pipelines, in the order of the pipelines."""

    def __init__(self, timeout_s: float, group: dist.ProcessGroup) -> None:
        """Connect; all members of the group do this together.

        Args:
            timeout_s: how long to wait for them.
            group: this rank of each pipeline, in the order of the pipelines.

        Raises:
            InvalidInput: this process is not in the group.
            TransferFailed: another one does not come.
        """
        super().__init__(timeout_s, group, "swap_group")
        self.way: Sequence[float] = 0.0, 0.0
        """What this rank's losses of the next step are divided by and scaled with; those of the peers are the same."""

    def everybody(self, pipeline: Groups) -> tuple[Store, int, int]:
        """A store that all ranks of all pipelines see, which of them this is, and how many they are; all peers call it together.

        Raises:
            TransferFailed: a peer is lost.
        """
        first = self.exchange(pipeline.key)[0]  # the same for all ranks of the first pipeline, and so for all
        store = PrefixStore(f"{first}/swap_group", _get_default_store())
        return store, self.rank * pipeline.size + pipeline.rank, self.size * pipeline.size

    def all_see(self, seen: bool) -> bool:
        """Whether all peers see what this one sees; all call it together.

        Raises:
            InvalidInput: they weigh their losses in different ways.
            TransferFailed: a peer is lost, or too late.
        """
        own = torch.tensor([[float(seen), *self.way]], dtype=torch.float64, device="cpu")
        found = torch.zeros(self.size, own.numel(), dtype=torch.float64, device="cpu")
        doing = f"pipeline {self.rank} asks the others of its swap_group about the step"
        patience_s = 2 * self.timeout_s  # a peer may have to find out first that a channel has failed
        late = f"no answer in {patience_s:g} s; one is stuck or slower than the timeout_s given to load"
        with with_others(doing, "one of them has ended, and its own message says why", late):
            finish(self.all._allgather_base(found, own), patience_s)
        if (found[:, 1:] != own[:, 1:]).any():
            check_same_way(found[:, 1:].tolist(), "pipelines of a swap_group")
        return bool(found[:, 0].all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A plan from a process of the job that has verified it (`schedc.runtime.adapt`): this rank does not verify it again."""

    plan: Plan | None
    """None: it did not come whole."""
    digest: str = ""
    """Of the bytes that came, which are those that were published."""
    refusal: str = ""
    """Why there is no plan."""


@dataclass(eq=False)
class Swap:
    """What has become of one `Pipe.swap`, as its rank knows it."""

    state: Literal["pending", "done", "refused"] = "pending"
    """`pending` until all ranks have called `swap`; then `done` or `refused`, the same on all of them."""
    step: int | None = None
    """The number of the first step of the new plan, or the first for which its refusal was known."""
    reason: str | None = None
    """Why it was refused."""


class PlanSwapper:
    """What moves one rank's pipe to other plans, one after the other."""

    def __init__(self, groups: Groups, swap_group: SwapGroup | None, fits: Callable[[Plan], None], hooks: ReplicaHooks) -> None:
        """Take the ranks.

        The peers in `swap_group`, in pipelines that move with it, make their movers together. `fits` checks a plan as `load` has
        checked the first; `hooks` may not go from every plan to every other.
        """
        self._fits = fits
        self._hooks = hooks
        self._size = groups.size
        self._swap_group = swap_group
        everybody = (groups.store, groups.rank, groups.size) if swap_group is None else swap_group.everybody(groups)
        self.store, self._rank, self._ranks = everybody
        """Where all ranks that move together, and they alone, can leave values for each other."""
        self._number = 0
        """How many offers are settled."""
        self._pending: tuple[Swap, Plan | None] | None = None
        """The plan that this rank has offered to move to; None instead of it where this rank refuses it."""

    @property
    def pending(self) -> bool:
        """Whether this rank has offered a plan, and does not know yet what becomes of it."""
        return self._pending is not None

    def offer(self, running: Plan, other: Path | str | Plan | Received) -> Swap:
        """Offer a plan to the other ranks, in any thread; returns at once.

        Args:
            running: the plan that runs.
            other: the plan file, or the plan; or one that another process has verified.

        Raises:
            InvalidInput: the move before it is still pending.
            TransferFailed: the job's store is lost.
        """
        if self._pending is not None:
            raise InvalidInput("another swap is pending until all ranks have called it; wait until its state is not 'pending'")
        plan: Plan | None = None
        try:
            found, digest = _taken(other)
            self._fits(found)
            self._hooks.check_swap(running, found)
            check_same_stages(running, found)
            offer = Offer(None, digest)
            plan = found
        except SchedcError as error:
            offer = Offer(str(error))
        swap = Swap()
        self._pending = swap, plan
        with self._reaching_others("offers a plan to the others"):
            key = self._key(self._rank)
            self.store.set(key, json.dumps(offer))  # from here on the step's thread may settle it, where another one offers
            self.store.wait([key])  # `set` returns before the store has it
        return swap

    def all_have_offered(self) -> bool:
        """Whether this rank, which looks for the others, sees all offers; and so do those of the pipelines that move with it.

        Raises:
            TransferFailed: the store or a peer is lost.
        """
        seen = False
        if self._pending is not None:
            with self._reaching_others("looks who has offered a plan"):
                seen = self.store.check([self._key(rank) for rank in range(self._ranks)])
        return seen if self._swap_group is None else self._swap_group.all_see(seen)

    def settle(self, step: int, running: Plan, wiring: Wiring, use: Callable[[Plan], None]) -> str | None:
        """Once all ranks have offered, between two steps: move to the plan that they have offered.

        Args:
            step: the number of the next step.
            running: the plan that runs.
            wiring: of the pipe.
            use: lets the pipe run a plan whose wires are laid.

        Returns:
            Why they do not move; None: they do.

        Raises:
            TransferFailed: the store or a rank is lost.
        """
        assert self._pending is not None
        (swap, plan), self._pending = self._pending, None
        with self._reaching_others("reads the offers of the others"):
            offers = [Offer(*json.loads(self.store.get(self._key(rank)))) for rank in range(self._ranks)]
            if self._number:  # all have read it, or they would not have made the next
                self.store.delete_key(self._key(self._rank, before=1))
        self._number += 1
        swap.step = step
        swap.reason = disagreement(offers, self._size)
        if swap.reason is not None or plan is None:
            swap.state = "refused"
            return swap.reason
        old, new = running.problem, plan.problem
        same = (new.microbatches, new.path_of) == (old.microbatches, old.path_of)
        wiring.move(plan, wiring.boundaries if same else None)
        use(plan)
        swap.state = "done"
        return None

    def _key(self, rank: int, before: int = 0) -> str:
        return f"swap/{self._number - before}/{rank}"

    @contextmanager
    def _reaching_others(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            lost = "the job's store is lost; the process that holds it has ended"
            raise TransferFailed(f"rank {self._rank} {doing}: {lost}") from error


def _taken(other: Path | str | Plan | Received) -> tuple[Plan, str]:
    """The plan, which has been verified here or by who sent it, and its digest."""
    if not isinstance(other, Received):
        plan = read(other, verify=True)
        return plan, plan_digest(plan)
    if other.plan is None:
        raise CheckFailed(other.refusal)
    return other.plan, other.digest


def check_same_stages(running: Plan, other: Plan) -> None:
    """Refuse to move from one plan to another that does not leave every stage where its weights are.

    What may differ: the orders, the parts, all costs, and the number of microbatches.

    Raises:
        InvalidInput: names the first thing that differs.
    """
    old, new = running.problem, other.problem
    what = f"plan {other.name!r} cannot take over from plan {running.name!r}: it"
    remedy = "a swap leaves every stage where it is; load the plan instead"
    if len(new.stages) != len(old.stages):
        raise InvalidInput(f"{what} has {len(new.stages)} stages, expected {len(old.stages)}; {remedy}")
    for stage, (before, after) in enumerate(zip(old.stages, new.stages, strict=True)):
        if after.rank != before.rank:
            raise InvalidInput(f"{what} puts stage {stage} on rank {after.rank}, expected rank {before.rank}; {remedy}")
        if after.layers != before.layers:
            raise InvalidInput(f"{what} has the layers {after.layers} in stage {stage}, expected {before.layers}; {remedy}")
    joined = [[(edge.source, edge.destination, edge.value, edge.has_gradient) for edge in one.edges] for one in (old, new)]
    if joined[0] != joined[1]:
        raise InvalidInput(f"{what} has stages that take other values of each other; {remedy}")
    if new.slices != old.slices:
        raise InvalidInput(f"{what} has the slices {list(new.slices)}, expected {list(old.slices)}; {remedy}")
    if new.paths != old.paths:
        raise InvalidInput(f"{what} has the paths {new.paths}, expected {old.paths}; {remedy}")

"""A plan on one rank: its wires, and what runs its ops over them, in the plan's order or online, each as soon as it can run.

What the ops compute is given for each plan: training of stages, or waiting (`schedc.runtime.emulation`).
"""

from __future__ import annotations

from itertools import permutations
from time import perf_counter_ns
from typing import TYPE_CHECKING

from schedc.runtime.execution.executor import Compute, Executor
from schedc.runtime.execution.wiring import Wiring, Wrap

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.common.observer import Observer
    from schedc.runtime.common.program import Program
    from schedc.runtime.transports.base import ChannelsOf


class PipelineRunner:
    """One rank's wires, and its executor once it knows what computes: `use`."""

    executor: Executor
    """Of the plan that runs."""

    def __init__(
        self,
        plan: Plan,
        groups: Groups,
        timeout_s: float,
        channels: ChannelsOf,
        wrap: Wrap | None = None,
        device: torch.device | None = None,
        *,
        online: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Connect the wires; all ranks do this together.

        Args:
            plan: the first plan.
            groups: of its ranks.
            timeout_s: how long an op waits for another rank.
            channels: the ways to connect two ranks; where there are several, one takes over from another that fails.
            wrap: what is put around the ends of a wire; None: nothing.
            device: where the stages are; None: the CPU.
            online: whether this rank dispatches its ops by what has come (docs/choosing.md).
            scale: by how much slower than the plan's costs all of it runs.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._rank = groups.rank
        self._timeout_s = timeout_s
        self._scale = scale
        self._arrivals = None
        self._prepared: tuple[Plan, list[int]] | None = None
        """The newest plan of which it is known when each op may run, and that."""
        if online:
            from schedc.runtime.execution.arrivals import Arrivals

            self._arrivals = Arrivals()
            wrap = self._arrivals.around(wrap)
        wiring: type[Wiring] = Wiring
        if any(len(channels(*pair)) > 1 for pair in permutations(range(groups.size), 2)):
            from schedc.runtime.execution.failover import FailoverWiring

            wiring = FailoverWiring
        self.wiring = wiring(plan, groups, timeout_s, channels, wrap, device)

    def prepare(self, plan: Plan) -> None:
        """Simulate a plan that is going to run, in any thread, so that the step's thread need not; nothing to do unless `online`.

        Args:
            plan: one that has been verified.
        """
        if self._arrivals is not None:
            from schedc.runtime.execution.online import earliest_ns

            self._prepared = plan, earliest_ns(plan, self._rank)

    def use(
        self,
        plan: Plan,
        program: Program,
        compute: Compute,
        observer: Observer | None,
        hooks: ReplicaHooks | None = None,
        now: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Run this plan from now on; its wires are laid.

        Args:
            plan: the plan.
            program: its program of this rank.
            compute: what its ops do.
            observer: is called with the ops.
            hooks: what connects the rank to other pipelines.
            now: the observer's clock.
        """
        if self._arrivals is None:
            self.executor = Executor(program, self.wiring, compute, observer, hooks, now)
            return
        from schedc.runtime.execution.online import OnlineExecutor, earliest_ns

        prepared = self._prepared
        earliest = prepared[1] if prepared is not None and prepared[0] is plan else earliest_ns(plan, self._rank)
        parts = program, self.wiring, self._arrivals, compute, observer, hooks, now, self._timeout_s, self._scale
        self.executor = OnlineExecutor(plan, earliest, *parts)

"""A loaded plan whose ranks choose their next op by what has come: `load(..., kind=ChoosingPipe)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.program import program_of
from schedc.runtime.execution.arrivals import Arrivals
from schedc.runtime.execution.choosing import ChoosingExecutor, earliest_ns
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.stage.apart import sharded
from schedc.runtime.transports.requests import stage_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.execution.wiring import Wrap


class ChoosingPipe(Pipe):
    """One rank's part of a plan, which it runs out of order where something is late (docs/choosing.md).

    Ranks that choose and ranks that do not may be mixed.
    """

    def __init__(self, plan: Plan, stages: Mapping[int, nn.Module], groups: Groups, *, wrap: Wrap | None, **others: Any) -> None:
        """As `Pipe`."""
        self._arrivals = Arrivals()
        self._prepared: tuple[Plan, list[int]] | None = None
        """The newest plan of which it is known when each op may run, and that."""
        self._timeout_s = others["timeout_s"]
        super().__init__(plan, stages, groups, wrap=self._arrivals.around(wrap), **others)

    @classmethod
    def check(cls, plan: Plan, modules: Mapping[int, nn.Module], *, alone: bool) -> None:
        """As `Pipe.check`.

        Raises:
            Unsupported: the stages are not on the CPU, or have collectives with those of other processes, which may choose
                another order.
        """
        device = stage_device(modules)
        if device.type != "cpu":
            raise Unsupported(f"this rank has its stages on {device}; ranks choose inside a step with stages on the CPU only")
        shared = None if alone else "a swap_group was given"
        for stage, module in modules.items():
            found = sharded(module)
            shared = shared if found is None else f"stage {stage} has {found}"
        if shared is not None:
            raise Unsupported(
                f"{shared}, so stages have collectives with those of other processes, which may choose another order;"
                " load without kind=ChoosingPipe"
            )

    def write_trace(self, path: Path | str) -> None:
        """Refused: a trace has the ops of all its steps in the plan's order."""
        raise InvalidInput(
            f"{path}: a trace has the plan's order, in which ranks that choose do not run; record with a pipe that does not choose"
        )

    def prepare(self, plan: Plan) -> None:
        """Simulate a plan that is going to be given to `swap`, in any thread, so that the step's thread need not.

        Args:
            plan: one that has been verified.
        """
        self._prepared = plan, earliest_ns(plan, self.groups.rank)

    def _use(self, plan: Plan) -> None:
        super()._use(plan)
        prepared = self._prepared
        earliest = prepared[1] if prepared is not None and prepared[0] is plan else earliest_ns(plan, self.groups.rank)
        self._executor = ChoosingExecutor(
            plan,
            earliest,
            program_of(plan, self.groups.rank),
            self._wiring,
            self._arrivals,
            self._training,
            self._observer,
            self.hooks,
            self._now,
            self._timeout_s,
        )

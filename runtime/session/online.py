"""A loaded plan whose ranks choose their next op by what has come: `load(..., kind=ChoosingPipe)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan
from schedc.runtime.execution.online import OnlineRunner
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.stage.apart import sharded
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn


class ChoosingPipe(Pipe):
    """One rank's part of a plan, which it runs out of order where something is late (docs/choosing.md).

    Ranks that choose and ranks that do not may be mixed.
    """

    runner = OnlineRunner

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

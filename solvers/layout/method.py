"""What a method over layouts is; apart from what such methods use, so that looking for a method's name loads little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.solvers.common.method import Method

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir import OpenLayout, Workload
    from schedc.solvers.layout.layout_arrays import ScheduledLayout


class LayoutMethod(Method, frozen=True):
    """A method that chooses a layout with its schedule, where the job leaves it open."""

    def choose(
        self,
        workload: Workload,
        open_layout: OpenLayout,
        *,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[int, int], None] = lambda _evaluated, _best_ns: None,
        plain: bool | None = None,
    ) -> ScheduledLayout:
        """The best layout and schedule that it finds; the same for the same arguments.

        Args:
            workload: what `schedc.verify.workload` accepts.
            open_layout: what may be chosen; where nothing is, the schedule alone is sought.
            stop: is called between candidates; the best so far is the result once it returns True.
            report: is called with how many layouts were evaluated, and the objective, whenever there is a better one.
            plain: whether kernels run plain; None: as suits the problem's size.

        Raises:
            Unsupported: the numbers are too large.
            NoPlanFound: there is no schedule within memory.
        """
        raise NotImplementedError

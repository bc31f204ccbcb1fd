"""The compiler's choice among the layouts that a job leaves open, for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.compile.driver import compile_layouts
from schedc.solvers.common.search_settings import SearchSettings

if TYPE_CHECKING:
    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A layout, what its best schedule takes, and a bound over all layouts."""

    layout: Layout
    makespan_ns: int
    lower_bound_ns: int


def chosen_layout(workload: Workload, open_layout: OpenLayout, limits: Limits) -> Chosen:
    """The layout that `auto` chooses within the limits."""
    compiled = compile_layouts(workload, open_layout, SearchSettings(limits=limits))
    assert compiled.layout is not None
    certificate = compiled.plan.certificate
    return Chosen(layout=compiled.layout, makespan_ns=certificate.makespan_ns, lower_bound_ns=certificate.lower_bound_ns)

"""The wires of a rank together: what is connected is closed, also where the rest does not connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem

from schedc.runtime.common.failure import ConnectionLost
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.transports.base import Ends, only
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from schedc.runtime.common.program import Wire


class Middle:
    """The groups of rank 1."""

    rank = 1
    size = 3
    all = None


def test_a_wire_that_does_not_connect_leaves_no_other_open() -> None:
    """Its ends run threads and hold communicators, which end only together."""
    problem = make_problem(3, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    done: list[str] = []

    def connect(wire: Wire, groups: Any) -> Ends:
        if len(done) == 2:
            raise ConnectionLost("no way to the other rank")
        number = len(done)
        done.append(f"open {number}")
        nothing: Any = None
        return Ends(nothing, nothing, close=lambda: done.append(f"close {number}"), ended=lambda _: done.append(f"ended {number}"))

    groups: Any = Middle()
    with pytest.raises(ConnectionLost):
        Wiring(plan, groups, 60.0, only(connect), lambda wire, ends: ends)
    assert done == ["open 0", "open 1", "close 0", "close 1", "ended 0", "ended 1"]

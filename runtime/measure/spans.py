"""What a step writes into a trace of `torch.profiler` while one runs: a span for each op, named by its token, and for the step.

`schedc compare PLAN TRACE…` reads them, one trace for each rank (`schedc.formats.profiler_steps`). A transfer that is handed over,
or that an op takes, is a span without length. Nothing of this is imported, and nothing called, where no profiler runs.

The rest of a call is hidden from the profiler: torch (2.13) ends the process where a transfer of gloo that it has begun to record
ends after the profiler. So what records is let in by `span` alone.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler import record_function

from schedc.formats.plan.plan_file import plan_sha256
from schedc.ir import Op, Plan, token
from schedc.runtime.common.hooks import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator


_AUTOGRAD: Any = torch.autograd


@contextmanager
def hidden() -> Iterator[None]:
    """What is in this context is not recorded, but for spans."""
    _AUTOGRAD._enable_record_function(False)
    try:
        yield
    finally:
        _AUTOGRAD._enable_record_function(True)


@contextmanager
def span(name: str) -> Iterator[None]:
    """A span of this name, and all in it, in a call that is hidden."""
    _AUTOGRAD._enable_record_function(True)
    try:
        with record_function(name):
            yield
    finally:
        _AUTOGRAD._enable_record_function(False)


@contextmanager
def step_span(step: int, rank: int, plan: Plan) -> Iterator[None]:
    """The span of a step, in a call that is hidden, as all in it is."""
    with span(f"schedc.step {step} {rank} {plan_sha256(plan)}"), hidden():
        yield


class TransferMarks(Observer):
    """Marks the transfers of a rank."""

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        """As `Observer.sent`."""
        with span(f"schedc.sent {token(transfer)} {peer}"):
            pass

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        """As `Observer.taken`."""
        with span(f"schedc.taken {token(transfer)} {peer}"):
            pass

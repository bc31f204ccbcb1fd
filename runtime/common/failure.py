"""What goes wrong while a plan is executed: a peer that ends, fails or does not answer, a loss that is no number."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from schedc.errors import InvalidInput, SchedcError

if TYPE_CHECKING:
    from collections.abc import Iterator


class ConnectionLost(RuntimeError):
    """The peer has ended, or its end of the wire is closed."""


class NoAnswer(RuntimeError):
    """The peer has not done its part in time."""


def is_own(error: RuntimeError) -> bool:
    """Whether an error of PyTorch's says what is wrong with this rank, and nothing of any other: memory that is short, or CUDA.

    A connection that is lost is a RuntimeError, too, as is memory of the host's that is short.
    """
    return isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)) or "DefaultCPUAllocator" in str(error)


class TransferFailed(SchedcError):
    """A message did not come or could not be delivered; names the op, the message and the peer. The pipe is closed after it."""


class BatchRefused(InvalidInput):
    """A batch does not fit, all ranks of all pipelines raise this, and nothing of the step has run. The pipe is open."""


class NonFiniteLoss(SchedcError):
    """A microbatch's loss is not finite; names the step, the microbatch and the rank that computed it, the same on all ranks.

    The step has ended on all ranks and the pipe is open, but the gradients that it has added are of no use.
    """


def connection_lost(peer: int) -> str:
    """What a broken connection means."""
    return f"the connection is lost; rank {peer} has ended or failed, and its own message says why"


def waiting_failed(waiting: str, error: Exception, timeout_s: float, peer: int) -> TransferFailed:
    """What to raise when a wait has failed.

    `waiting` is who waits for what from whom: `rank 0: B0.3 waits for B1.3 from rank 1`.
    """
    if isinstance(error, NoAnswer):
        return TransferFailed(f"{waiting}: no answer in {timeout_s:g} s; it is stuck or slower than the timeout_s given to load")
    return TransferFailed(f"{waiting}: {connection_lost(peer)}")


@contextmanager
def with_others(doing: str, lost: str, late: str = "") -> Iterator[None]:
    """A context for what several ranks do together.

    Args:
        doing: who does what, for messages.
        lost: what a lost connection means.
        late: what it means that no answer has come in time, where waits in this context have a limit of their own.

    Raises:
        TransferFailed: another rank is lost, or too late.
    """
    try:
        yield
    except NoAnswer as error:
        raise TransferFailed(f"{doing}: {late}") from error
    except RuntimeError as error:
        if is_own(error):
            raise
        raise TransferFailed(f"{doing}: the connection is lost; {lost}") from error

"""What goes wrong while a plan is executed: a peer that ends, fails or does not answer."""

from __future__ import annotations

from schedc.errors import SchedcError

__all__ = ["TransferFailed"]


class TransferFailed(SchedcError):
    """A message did not come or could not be delivered; names the op, the message and the peer. The pipe is closed after it."""

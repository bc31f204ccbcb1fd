"""What is wrong with a rank itself is said as what it is, and not as the loss of another rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from schedc.runtime.common.failure import TransferFailed, is_own
from schedc.runtime.replicas.buckets import Partners
from schedc.runtime.replicas.pipelines import LOST

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY: Any = None
WITH_REPLICAS = Partners(NOBODY, LOST)


def short_of_host_memory() -> None:
    torch.empty(1 << 50)


def short_of_device_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def broken_device() -> None:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def lost() -> None:
    raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")


@pytest.mark.parametrize("fails", [short_of_host_memory, short_of_device_memory, broken_device])
def test_a_collective_that_does_not_start_for_want_of_memory(fails: Callable[[], None]) -> None:
    with pytest.raises(RuntimeError) as raised:
        WITH_REPLICAS.start(fails, "rank 0 sums the gradients of stage 0")
    assert is_own(raised.value)
    assert not isinstance(raised.value, TransferFailed)


def test_a_replica_that_is_lost() -> None:
    with pytest.raises(TransferFailed, match="rank 0 sums the gradients of stage 0: the connection is lost; a replica has ended"):
        WITH_REPLICAS.start(lost, "rank 0 sums the gradients of stage 0")

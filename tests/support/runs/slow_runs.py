"""Stages that take their time, and connections that do: for steps whose times are to be predictable."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

OP_S = 0.010
"""How long each F, B and W takes."""


class Slow:
    """A group whose messages to one rank, from this one, are late."""

    def __init__(self, group: Any, peer: int, latency_s: float) -> None:
        self._group, self._peer, self._latency_s = group, peer, latency_s

    def __getattr__(self, name: str) -> Any:
        """All else is the group's."""
        return getattr(self._group, name)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """As the group's."""
        return Late(partial(self._group.send, tensors, peer, tag), self._latency_s if peer == self._peer else 0.0)


class Late:
    """What a thread sends when its time has come."""

    def __init__(self, send: Callable[[], Any], latency_s: float) -> None:
        self._work: Any = None
        self._sent = threading.Event()
        self._send = send
        timer = threading.Timer(latency_s, self._run)
        timer.daemon = True
        timer.start()

    def _run(self) -> None:
        self._work = self._send()
        self._sent.set()

    def wait(self, *limit: Any) -> None:
        self._sent.wait()
        self._work.wait(*limit)


class Work(torch.autograd.Function):
    """Waits as long as an op takes, and gives what it gets."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """F."""
        time.sleep(OP_S)
        return x + weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """B and W together."""
        (gradient,) = gradients
        time.sleep(2 * OP_S)
        return gradient, gradient.sum()


class Stage(nn.Module):
    """A stage that takes its time, and has a buffer and a weight to put back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("table", torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F."""
        work: Any = Work
        y: torch.Tensor = work.apply(x, self.weight)
        return y

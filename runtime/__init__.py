"""What executes a plan.

A training job loads a plan with its stages and runs steps; everything between is the plan's:

    with schedc.runtime.load("plan.json", stages={0: embed, 4: head}, loss_fn=loss_fn) as pipe:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = pipe.step(inputs, targets)
            optimizer.step()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.common.failure import NonFiniteLoss, TransferFailed
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.observer import Observer, OpTimes
from schedc.runtime.session.loading import load
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from schedc.runtime.session.building import build_stages
else:

    def __getattr__(name: str) -> object:
        """Load what not every job uses."""
        if name != "build_stages":
            raise AttributeError(name)
        from schedc.runtime.session.building import build_stages

        return build_stages


__all__ = ["NonFiniteLoss", "Observer", "OpTimes", "Pipe", "ReplicaHooks", "TransferFailed", "build_stages", "load"]

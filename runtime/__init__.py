"""What executes a plan.

A training job loads a plan with its stages and runs steps; everything between is the plan's:

    with schedc.runtime.load("plan.json", stages={0: embed, 4: head}, loss_fn=loss_fn) as pipe:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = pipe.step(inputs, targets)
            optimizer.step()
"""

from __future__ import annotations

from schedc.runtime.common.failure import NonFiniteLoss, TransferFailed
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.observer import Observer, OpTimes
from schedc.runtime.session.loading import load
from schedc.runtime.session.pipe import Pipe

__all__ = ["NonFiniteLoss", "Observer", "OpTimes", "Pipe", "ReplicaHooks", "TransferFailed", "load"]

"""What executes a plan: `load` it with a rank's stages, then call `step` for each batch (docs/runtime.md has an example)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "schedc.runtime":  # found from the repository's root
    raise ImportError("found runtime as a package of its own, expected it in schedc: import schedc.runtime")

from schedc.runtime.common.failure import BatchRefused, NonFiniteLoss, TransferFailed
from schedc.runtime.common.hooks import Observer, OpTimes, ReplicaHooks
from schedc.runtime.session.loading import load
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from schedc.runtime.session.building import build_stages
else:

    def __getattr__(name: str) -> object:
        """Load what not every job uses."""
        if name != "build_stages":
            raise AttributeError(name)
        return import_module("schedc.runtime.session.building").build_stages


__all__ = ["BatchRefused", "NonFiniteLoss", "Observer", "OpTimes", "Pipe", "ReplicaHooks", "TransferFailed", "build_stages", "load"]

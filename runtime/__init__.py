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
    from schedc.runtime.asynchronous.corrections import Correction, ReducedRate, WeightPrediction
    from schedc.runtime.asynchronous.optimizers import StageOptimizers
    from schedc.runtime.session.building import build_stages
else:
    _LATER = {
        "build_stages": "session.building",
        "StageOptimizers": "asynchronous.optimizers",
        **dict.fromkeys(("Correction", "ReducedRate", "WeightPrediction"), "asynchronous.corrections"),
    }

    def __getattr__(name: str) -> object:
        """Load what not every job uses."""
        if name not in _LATER:
            raise AttributeError(name)
        return getattr(import_module(f"schedc.runtime.{_LATER[name]}"), name)


__all__ = [
    "BatchRefused",
    "Correction",
    "NonFiniteLoss",
    "Observer",
    "OpTimes",
    "Pipe",
    "ReducedRate",
    "ReplicaHooks",
    "StageOptimizers",
    "TransferFailed",
    "WeightPrediction",
    "build_stages",
    "load",
]

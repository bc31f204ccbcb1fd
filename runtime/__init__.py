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
    from schedc.runtime.stage.slice_attention import length_of, slice_attention
    from schedc.runtime.stage.split_head import HeadJoin, HeadPart, split_cross_entropy
else:
    _LATER = {
        "build_stages": "session.building",
        "StageOptimizers": "asynchronous.optimizers",
        **dict.fromkeys(("Correction", "ReducedRate", "WeightPrediction"), "asynchronous.corrections"),
        **dict.fromkeys(("length_of", "slice_attention"), "stage.slice_attention"),
        **dict.fromkeys(("HeadJoin", "HeadPart", "split_cross_entropy"), "stage.split_head"),
    }

    def __getattr__(name: str) -> object:
        """Load what not every job uses."""
        if name not in _LATER:
            raise AttributeError(name)
        return getattr(import_module(f"schedc.runtime.{_LATER[name]}"), name)


__all__ = [
    "BatchRefused",
    "Correction",
    "HeadJoin",
    "HeadPart",
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
    "length_of",
    "load",
    "slice_attention",
    "split_cross_entropy",
]

"""Measuring what a job's files ask for: a model's layers for its profile, the links between ranks for its topology.

A factory for `schedc profile` returns a `Model`; `profile_model` measures it, as the command does:

    from schedc.runtime.profiling import Model, profile_model

    def model() -> Model:
        blocks = [(f"block.{i}", Block()) for i in range(32)]
        return Model(layers=[("embedding", Embedding()), *blocks, ("head", Head())], inputs=tokens, targets=tokens, loss_fn=loss)
"""

from __future__ import annotations

from schedc.formats.graph_entries import LayerEdge, ModuleEntry
from schedc.runtime.profiling.flow import measured_edges
from schedc.runtime.profiling.layers import profile_model
from schedc.runtime.profiling.model import MeasuredLayer, Model, load_model, merged, profile_layer, warnings

__all__ = [
    "LayerEdge",
    "MeasuredLayer",
    "Model",
    "ModuleEntry",
    "load_model",
    "measured_edges",
    "merged",
    "profile_layer",
    "profile_model",
    "warnings",
]

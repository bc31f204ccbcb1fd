"""What replicas have besides gradients: weights that some steps do not train or use, and buffers. One model has one of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import few_plan
from runs import replicated_runs
from runs.processes import without_teller
from torch import nn

from schedc.runtime.replicas.buckets import Partners
from schedc.runtime.replicas.buffers import SharedBuffers

if TYPE_CHECKING:
    from runs.processes import Ranks


@pytest.mark.parametrize("zero", [0, 1])
def test_buffers_and_unused_weights(four: Ranks, zero: int) -> None:
    """Buffers that are saved become those of the first pipeline, others stay; a weight that nobody uses has no gradient."""
    results = four.run(replicated_runs.state, few_plan("zb-v", zero))
    for (buffers, wrong), (same, _) in zip(results, [*results[:2], *results[:2]], strict=True):
        assert buffers == same
        assert all(kept for *_, kept in buffers)
        assert not any(wrong)


def test_buffers_of_both_paths(two: Ranks) -> None:
    """Stages that hold the same weights have the same buffers: those of the first path."""
    found: dict[int, set[tuple[bool, float]]] = {}
    for buffers, _ in two.run(replicated_runs.state, few_plan("bidirectional")):
        for place, count, mean, kept in buffers:
            assert kept
            found.setdefault(place, set()).add((count, mean))
    assert [len(each) for each in found.values()] == [1, 1]


def test_buffers_on_several_devices_go_together() -> None:
    """On that of the weights, which the connection is for."""
    stage, sent = nn.BatchNorm1d(3, device="meta"), list[torch.Tensor]()
    stage.num_batches_tracked = torch.zeros((), dtype=torch.int64)
    group: Any = SimpleNamespace(
        size=lambda: 2, rank=lambda: 0, broadcast=lambda tensors, options: SimpleNamespace(wait=lambda: sent.extend(tensors))
    )
    SharedBuffers([stage], Partners(group, ""), "").share()
    assert [(one.device.type, one.numel()) for one in sent] == [("meta", 32)]


@pytest.mark.parametrize("way", ["unfrozen", "new"])
def test_weights_that_are_trained_later(two: Ranks, four: Ranks, way: str) -> None:
    """Refused where replicas would not sum their gradients, right where there are none."""
    assert two.run(replicated_runs.unfrozen, few_plan("1f1b"), way) == ["trained"] * 2
    for ranks, plan in ((four, few_plan("1f1b", 0)), (four, few_plan("1f1b", 1)), (two, few_plan("bidirectional"))):
        for said in ranks.run(replicated_runs.unfrozen, plan, way):
            assert without_teller(said).startswith("Unsupported: stage ")
            assert said.endswith(
                "norm.bias requires grad, which it did not at load, so its gradients would not be summed over replicas;"
                " load again after changing which weights are trained"
            )


def test_tied_weights_that_are_trained_later(two: Ranks) -> None:
    for said in two.run(replicated_runs.unfrozen, few_plan("1f1b"), "tied"):
        assert without_teller(said).startswith(
            "Unsupported: a tied weight requires grad, which it did not when it was tied, so its gradients"
        )

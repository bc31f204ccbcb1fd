"""Split and fused backwards as candidates, and sums over layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import CONFIG, EXPERTS, tiny_request

from schedc.compile.driver import compile_problem
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import costs_of
from schedc.study.tune.search import tune

if TYPE_CHECKING:
    from pathlib import Path

TRIED: dict[str, object] = {"microbatch_sizes": [1], "ranks": [2], "placements": ["unidirectional"], "batch": 8}
ALL, NONE = TRIED | {"recompute": ["none", "selective", "full"]}, TRIED | {"recompute": ["none"]}


def test_fused_backwards_are_tried_where_they_hold_less(tmp_path: Path) -> None:
    """Selective recomputation saves nothing that W needs; experts' outputs have gradients larger than what B frees."""
    assert tiny_request(tmp_path, tune=ALL).choices.forms == (("none", "split"), ("selective", "fused"), ("full", "split"))
    both = (("none", "split"), ("none", "fused"), ("selective", "fused"), ("full", "split"))
    assert tiny_request(tmp_path, config=EXPERTS, tune=ALL).choices.forms == both
    job = TRIED | {"split_backward": False, "recompute": ["none", "full"]}
    assert tiny_request(tmp_path, config=EXPERTS, tune=job).choices.forms == (("none", "fused"), ("full", "fused"))


def test_the_best_has_fused_backwards_where_only_they_fit(tmp_path: Path) -> None:
    """A capacity between what either holds, when the first rank has two microbatches."""
    wide = tiny_request(tmp_path, config=EXPERTS, tune=NONE, memory={"capacity": "8 GB", "reserve": "0 B"})
    held = {}
    for each in candidates(wide.choices):
        made = candidate_problem(wide, each)
        kept = compile_problem(made.problem, SearchSettings(method="1f1b")).plan.certificate.peak_activation_bytes
        held[each.backward] = max(static + peak for static, peak in zip(made.static_bytes, kept, strict=True))
    assert held["fused"] < held["split"]
    memory: dict[str, object] = {"capacity": f"{(held['fused'] + held['split']) // 2} B", "reserve": "0 B"}
    request = tiny_request(tmp_path, config=EXPERTS, tune=NONE, memory=memory)
    best = tune(request, SearchSettings(method="1f1b"), candidate_s=0.0).best
    assert best.candidate.backward == "fused" and best.candidate.title.endswith("unidirectional, fused backwards")


@pytest.mark.parametrize("config", [CONFIG, EXPERTS])
def test_sums_are_those_of_the_layers(config: dict[str, object], tmp_path: Path) -> None:
    """Of entries that repeat, layer by layer: a layer's activations are held while all from it on run."""
    request = tiny_request(tmp_path, config=config, tune=ALL | {"zero_stages": [1, 3]})
    for each in candidates(request.choices):
        costs = costs_of(request, each)
        assert any(entry.repeat > 1 for entry in costs.entries)
        totals, held = costs.totals, 0
        forwards_ns, gradients_ns, backwards_ns = [], [], []
        for layer in costs.layers:
            apart, whole = (layer.backward_input_ns[0], layer.backward_weight_ns[0]), layer.backward_ns[0]
            forwards_ns.append(layer.forward_ns[0])
            gradients_ns.append(min(apart[0], whole) if each.backward == "split" else whole)
            backwards_ns.append(min(sum(apart), whole) if each.backward == "split" else whole)
        for at, layer in enumerate(costs.layers):
            held += layer.activation_bytes * (sum(forwards_ns[at:]) + sum(gradients_ns[at:]))
        assert (totals.forward_ns, totals.gradient_ns, totals.backward_ns) == tuple(
            map(sum, (forwards_ns, gradients_ns, backwards_ns))
        )
        assert (totals.held_byte_ns, totals.activation_bytes) == (held, sum(layer.activation_bytes for layer in costs.layers))
        assert totals.parameters + totals.expert_parameters + costs.shared_parameters == sum(
            layer.parameters for layer in costs.layers
        )

"""Split and fused backwards as candidates, and sums over layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import CONFIG, EXPERTS, tiny_request

from schedc.compile.driver import compile_problem
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import CandidateState, TuneRow, candidates
from schedc.study.tune.estimates import about_ns
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.replicas import costs_of
from schedc.study.tune.search import tune
from schedc.study.tune.work import Work, in_order

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest

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


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_waits_for_memory_only_below_what_it_holds(chunks: int, tmp_path: Path) -> None:
    """The estimate by which candidates are ordered, with more room than an interleaved plan takes, and with half of that."""
    keys = TRIED | {"ranks": [4], "placements": ["loop"], "chunks": [chunks], "recompute": ["none"], "batch": 16}
    nothing: dict[str, object] = {"weight": "0 B", "gradient": "0 B", "optimizer": "0 B", "reserve": "0 B"}
    config = CONFIG | {"num_hidden_layers": 30, "vocab_size": 128}

    def about(capacity: str) -> tuple[int, TuneRequest, TuneCandidate]:
        request = tiny_request(tmp_path, config=config, tune=keys, memory=nothing | {"capacity": capacity})
        (each,) = candidates(request.choices)
        return about_ns(request, each, costs_of(request, each).totals), request, each

    unlimited_ns, request, each = about("1 TB")
    plan = compile_problem(candidate_problem(request, each).problem, SearchSettings(method="interleaved")).plan
    held = max(plan.certificate.peak_activation_bytes)
    assert about(f"{round(1.25 * held)} B")[0] == unlimited_ns
    assert about(f"{held // 2} B")[0] > 1.5 * unlimited_ns


def test_candidates_of_many_shapes_are_tried_early(tmp_path: Path) -> None:
    """Those that differ in sharding alone come after others that may take little more."""
    tried = {"ranks": [1, 2, 4], "zero_stages": [1, 2, 3], "recompute": ["none"], "microbatch_sizes": [1], "batch": 64}
    request = tiny_request(tmp_path, sites=(16,), tune=tried)
    works = [Work(TuneRow(candidate=each, state=CandidateState.NOT_REACHED)) for each in candidates(request.choices)]
    for work in works:  # fewer ranks are better by little, sharding makes no difference
        work.about_ns = 1000 + work.row.candidate.ranks
    found = in_order(works)
    shapes = [(work.row.candidate.ranks, work.row.candidate.placement) for work in found]
    assert set(shapes[: len(set(shapes))]) == set(shapes) and sorted(map(id, found)) == sorted(map(id, works))
    assert found[0].row.candidate.ranks == 1

"""Several tensors between stages: activations, masks and sums, with and without gradients, over wires and on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, strategies as st
from inputs.few_plans import W_IN_PARTS, made_by
from runs import boundary_runs, feature_runs, wrapped_runs
from runs.harness import assert_exact
from runs.stage_blocks import WAYS, WIDTH, run_all

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.boundary import DTYPES, HEADER, MAX_DIMS, MAX_TENSORS, TensorMeta, decode, encode, left_of
from schedc.runtime.stage.batches import cut, inputs_of
from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from runs.processes import Ranks


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("1f1b", {}),
    "interleaved": ("interleaved", {"placement": "loop", "chunks": 2}),
    "zb-h1": ("zb-h1", {}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "bidirectional": ("chimera", {"placement": "bidirectional"}),
    "greedy with W in parts": W_IN_PARTS,
}


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_gradients(two: Ranks, name: str, recompute: bool) -> None:
    method, options = PLANS[name]
    for result in two.run(feature_runs.several, made_by(method, **options), recompute):
        assert isinstance(result, dict), result
        assert result["error"] < 1e-9
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-12)


@pytest.mark.parametrize(("name", "recompute"), [("interleaved", False), ("zb-v", True), ("bidirectional", False)])
def test_drawn_models(two: Ranks, name: str, recompute: bool) -> None:
    """Up to 40 tensors: views, conjugates, one given twice or passed on, scalars, none, integers, with gradients and without."""
    method, options = PLANS[name]
    for errors in two.run(boundary_runs.drawn, made_by(method, **options), [1, 3], recompute):
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-9


def test_views_that_are_conjugate(two: Ranks) -> None:
    """Of outputs and of gradients: torch conjugates, and negates, only where something looks."""
    for errors in two.run(feature_runs.conjugate, made_by("zb-h1")):
        assert isinstance(errors, list), errors
        assert max(errors) < 1e-12


@pytest.mark.parametrize(
    ("way", "found", "expected", "same"),
    [
        ("fewer", "float32[3, 2]", "(float32[3, 2], float32[3, 2])", "number of tensors"),
        ("more", "(float32[3, 2], float32[3, 2], float32[3, 2])", "(float32[3, 2], float32[3, 2])", "number of tensors"),
        ("shape", "(float32[3, 2], float32[1, 2])", "(float32[3, 2], float32[3, 2])", "shape"),
        ("type", "(float32[3, 2], int64[3, 2])", "(float32[3, 2], float32[3, 2])", "shape"),
        (
            "graph",
            "(float32[3, 2] that does not require grad, float32[3, 2] that does not require grad)",
            "(float32[3, 2] that requires grad, float32[3, 2] that does not require grad)",
            "graph",
        ),
    ],
)
def test_a_stage_that_changes_what_it_gives(two: Ranks, way: str, found: str, expected: str, same: str) -> None:
    said = two.run(feature_runs.change, made_by("gpipe", microbatches=3), way)
    assert said[0] == (
        f"InvalidInput: microbatch 2: stage 0's output is {found}, expected {expected} as before;"
        f" give microbatches whose inputs are alike the same {same}, or give load varying=True"
    )
    assert said[1] == f"InvalidInput: rank 0: {said[0].partition(': ')[2]}"


@pytest.mark.parametrize("channels", ["gloo", "delegate"])
def test_a_default_device_of_the_job(two: Ranks, channels: str) -> None:
    """It is for the tensors that the job makes; what the ranks tell each other is in the host's memory."""
    for result in two.run(feature_runs.on_another_default_device, made_by("1f1b"), channels):
        assert len(result) > 2 and all(equal is True for equal in result), result


def test_a_stage_that_gives_a_wrapper_of_tensors(two: Ranks) -> None:
    """gloo would send memory that is not there, and end the process."""
    said = two.run(feature_runs.change, made_by("gpipe", microbatches=3), "wrapped")
    assert said[0] == (
        "Unsupported: microbatch 2: stage 0's output is a TwoTensor, which is made of other tensors; give plain ones or DTensors"
    )
    assert said[1] == f"Unsupported: rank 0: {said[0].partition(': ')[2]}"


@pytest.mark.parametrize(
    ("name", "between", "recompute"),
    [
        ("1f1b", "sharded", False),
        ("1f1b", "replicated", True),
        ("interleaved", "sharded", True),
        ("zb-v", "summed", False),
        ("bidirectional", "sharded", False),
    ],
)
def test_dtensors(four: Ranks, name: str, between: str, recompute: bool) -> None:
    """Each process sends its part, and gradients come back laid out as the outputs were."""
    method, options = PLANS[name]
    assert_exact(four.run(wrapped_runs.dtensors, made_by(method, **options), between, recompute))


@given(
    kinds=st.lists(
        st.builds(
            TensorMeta,
            st.sampled_from(DTYPES),
            st.lists(st.integers(0, 2**40), max_size=MAX_DIMS).map(tuple),
            st.booleans(),
            st.lists(st.integers(0, 2**40), max_size=9).map(tuple),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_headers(kinds: list[TensorMeta]) -> None:
    header, behind = encode(kinds)
    assert TensorMeta.of(header) == HEADER
    assert left_of(header) == (TensorMeta.of(behind) if behind.numel() else None)
    assert decode(header, behind if behind.numel() else None) == tuple(kinds)


def test_what_has_no_place_in_a_header() -> None:
    plain = TensorMeta(torch.float32, (2,))
    with pytest.raises(Unsupported, match="a stage gives 1025 tensors; stages can exchange up to 1024"):
        encode([plain] * (MAX_TENSORS + 1))
    with pytest.raises(Unsupported, match=r"a stage gives float8_e4m3fn\[2\]; stages can exchange plain number types"):
        encode([plain, TensorMeta(torch.float8_e4m3fn, (2,))])
    with pytest.raises(Unsupported, match="up to 14 dimensions"):
        encode([TensorMeta(torch.float32, (1,) * 15)])


def test_batches() -> None:
    whole = torch.arange(6).float().requires_grad_()
    assert [inputs_of(part)[0].tolist() for part in cut(whole, 3, "inputs", 0)] == [[0, 1], [2, 3], [4, 5]]
    pieces = [(torch.ones(2, requires_grad=True), torch.zeros(3)), (torch.ones(2), torch.ones(3))]
    assert cut(pieces, 2, "inputs", 0) is pieces
    first, second = inputs_of(pieces[0])
    assert (first.requires_grad, second.tolist()) == (False, [0, 0, 0])
    with pytest.raises(InvalidInput, match="rank 1: 2 microbatches of inputs were given, the plan has 3"):
        cut(pieces, 3, "inputs", 1)
    named: Any = {"x": whole}
    with pytest.raises(InvalidInput, match="a microbatch of inputs must be a tensor or a tuple of tensors; found dict"):
        inputs_of(named)
    incomplete: Any = (whole, None)
    with pytest.raises(InvalidInput, match="must be a tensor or a tuple of tensors; found tuple with NoneType"):
        inputs_of(incomplete)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("views", ["of the weight", "of both"])
def test_a_gradient_that_goes_back_is_in_no_memory_that_later_microbatches_add_to(way: str, views: str) -> None:
    """With one sample, a learned position has the gradient of the sample: a view of what the input gets, which becomes `.grad`."""
    torch.manual_seed(0)
    position = torch.nn.Parameter(torch.randn(3, WIDTH))

    def stage(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + position.unsqueeze(0) if views == "of the weight" else x.squeeze(0) + position.view(3, WIDTH))

    blocks = [StageBlock(stage, [torch.randn(1, 3, WIDTH, requires_grad=True)], split=way != "BW") for _ in range(3)]
    given, as_given = [], []
    for block in blocks:
        (output,) = block.take()
        assert output is not None
        (one,) = run_all(block, way, (torch.randn_like(output),))
        assert one is not None
        given.append(one)
        as_given.append(one.clone())
    assert all(map(torch.equal, given, as_given))

"""Kinds of stages × ways to run them; `benchmarks/runtime/matrix.py` runs every pair."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from runs import matrix_runs
from runs.matrix import MOST_ERROR, VALUES, cells, check_cell, error_of, pairs_that_hold, plans_of
from runs.matrix_stages import RANDOM, make_stage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from runs.processes import Ranks

QUICK = (26, 27, 28, 34, 45, 50, 60, 61, 62, 69, 70, 76, 77, 79, 84, 90, 97, 102, 106, 107, 111, 118, 119)
"""Cells that take little time, with each choice of every way, and each spread with backwards fused and split, in one at least."""


def test_cells_are_right_or_refused(four: Ranks, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    found = cells()
    for number in QUICK:
        (folder := tmp_path / str(number)).mkdir()
        assert check_cell(found[number], four, folder, counts) == []
    assert counts["right"] == 19, counts  # the others are refused


def test_every_choice_is_in_a_quick_cell() -> None:
    found = cells()
    for name, values in VALUES.items():
        assert {getattr(found[number], name) for number in QUICK} == {*values}


def test_every_pair_is_in_a_cell() -> None:
    """That means something: of others `changed` makes another cell."""
    found = cells()
    for (a, x), (b, y) in pairs_that_hold():
        assert any(getattr(cell, a) == x and getattr(cell, b) == y for cell in found)


class _Moved(torch.autograd.Function):
    """Each element moved by a unit in its last place, up, down, or not; the gradient as it comes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        by = torch.randint(-1, 2, values.shape, generator=generator, dtype=torch.int16)
        return torch.where(values == 0, values, (values.view(torch.int16) + by).view(torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def test_rounding_alone_stays_within_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bf16, in all steps: else a difference would say nothing, and a limit above it would let what is wrong pass."""
    deep = [cell for cell in cells() if cell.precision == "bf16" and cell.chunks > 1 and cell.kind not in RANDOM]
    refused = [cell for cell in deep if cell.spread.startswith("FSDP2") and cell.replicas == "ZeRO 1"]
    found = [cell for cell in deep if cell not in refused and cell.kind != "mixture"]  # which chooses
    assert len(found) > 5
    apply: Any = _Moved.apply
    for number, cell in enumerate(found):
        plan, generator = plans_of(cell)[0], torch.Generator().manual_seed(number)
        expected = matrix_runs.expected(cell, plan, {})

        def moving(*given: Any, generator: torch.Generator = generator) -> Any:
            stage = make_stage(*given)
            stage.down.register_forward_hook(lambda _module, _inputs, output: apply(output, generator))
            return stage

        with monkeypatch.context() as patch:
            patch.setattr(matrix_runs, "make_stage", moving)
            moved = matrix_runs.expected(cell, plan, {})
        error, where = error_of(cell, [{"steps": moved}], expected)
        assert 0 < error <= MOST_ERROR["bf16"], f"{cell}: {where} by {error:.2g}"

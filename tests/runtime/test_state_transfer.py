"""Processes that exchange places and layers: training goes on as if nothing had happened, bit by bit; or nothing has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.few_plans import made_by
from runs import exchange_runs
from runs.processes import DEAD, rank_processes

from schedc.errors import InvalidInput
from schedc.runtime.adapt.places import Places

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir.plan import Plan

STAY = (0, 1, 2, 3)


def plan(method: str, counts: list[int] | None, ranks: int = 2, zero: int = 0, **options: Any) -> Plan:
    """A plan of two pipelines whose stages have this many of the model's six layers."""
    return made_by(method, ranks, 3, counts=counts, zero=zero, size=4 // ranks, **options)


def merged(results: list[Any]) -> dict[str, Any]:
    """The values of all processes."""
    for result in results:
        assert isinstance(result, dict), result
    return {name: value for result in results for name, value in result["values"].items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_places_are_exchanged(four: Ranks, kind: str) -> None:
    """Two processes of different pipelines and ranks exchange places, then all, then all go home; with random numbers."""
    wave = plan("greedy", [2, 1, 2, 1], placement="wave", chunks=2)
    usual = four.run(exchange_runs.trained, {0: (STAY, wave)}, 6, kind)
    moves = {0: (STAY, wave), 2: ((2, 1, 0, 3), wave), 3: ((3, 2, 1, 0), wave), 5: (STAY, wave)}
    moved = four.run(exchange_runs.trained, moves, 6, kind)
    assert merged(moved) == merged(usual)
    assert [each["losses"] for each in moved] == [each["losses"] for each in usual]
    assert [each["kept"] for each in moved] == [
        [False, False, False],
        [True, False, False],
        [False, False, False],
        [True, False, False],
    ]


def test_layers_move_between_ranks(four: Ranks) -> None:
    """The first rank gives up layers, one after the other; the processes exchange places in the same move."""
    plans = [plan("zb-h1", counts) for counts in ([4, 2], [3, 3], [1, 5])]
    usual = four.run(exchange_runs.trained, {0: (STAY, plans[0])}, 4, "adamw", 0.0)
    moves = {0: (STAY, plans[0]), 1: (STAY, plans[1]), 2: ((1, 0, 3, 2), plans[2]), 3: ((1, 0, 3, 2), plans[2])}
    moved = four.run(exchange_runs.trained, moves, 4, "adamw", 0.0)
    assert merged(moved) == merged(usual)
    assert [each["losses"] for each in moved] == [each["losses"] for each in usual]
    assert [each["kept"] for each in moved] == [[False, False, True]] * 4


def test_bfloat16_with_wider_gradients(four: Ranks) -> None:
    one = plan("1f1b", [3, 3])
    settings = ("sgd", 0.0, torch.bfloat16, torch.float32)
    usual = four.run(exchange_runs.trained, {0: (STAY, one)}, 3, *settings)
    moved = four.run(exchange_runs.trained, {0: (STAY, one), 1: ((1, 3, 0, 2), one)}, 3, *settings)
    assert merged(moved) == merged(usual)


@pytest.mark.slow
def test_refusals(four: Ranks) -> None:
    """One line, on all processes, and training goes on."""
    here, there = plan("1f1b", [4, 2]), plan("1f1b", [3, 3])
    unknown, sharded = plan("1f1b", None), plan("1f1b", [4, 2], zero=1)
    for plans, way, line in (
        (
            [here],
            "gradients",
            "process 0 refuses the exchange: gradients cannot move; call optimizer.zero_grad() between the step and",
        ),
        (
            [here],
            "stranger",
            "process 0 refuses the exchange: the optimizer has a weight that is not of this process's stages; such",
        ),
        ([here], "apart", "processes 0 and 2 ask for different exchanges; give all the same places and plan; nothing has moved"),
        ([here], "kind", "the optimizers of processes 0 and 1 differ: AdamW and SGD; nothing has moved"),
        (
            [here, there],
            "shared",
            "process 0 refuses the exchange: layers 1 and 3 share the weight inner.up.bias; such layers cannot",
        ),
        (
            [here, unknown],
            "",
            "process 0 refuses the exchange: plan 'test' does not say which layers its stages have; compile it with",
        ),
        (
            [here, plan("1f1b", [4, 1])],
            "",
            "process 0 refuses the exchange: plan 'test' has 5 layers, plan 'test' has 6; nothing has",
        ),
        ([here, plan("1f1b", [1, 1, 2, 2], 4)], "", "process 0 refuses the exchange: plan 'test' is for 4 ranks, this job has 2;"),
        (
            [sharded],
            "",
            "process 0 refuses the exchange: weights that are sharded over replicas (ZeRO 1) cannot move; compile with",
        ),
    ):
        for said in four.run(exchange_runs.refused, plans, way):
            assert said.startswith(f"CheckFailed: {line}"), said
            assert "\n" not in said
    for process, said in enumerate(four.run(exchange_runs.refused, [here], "build")):
        inner = "the new piece 0: weight 0.weight: found torch.float32 [7, 6], expected torch.float64 [7, 6] as before"
        if process == 3:
            assert said == f"InvalidInput: {inner}"
        elif process == 2:
            assert said.startswith("InvalidInput: the new piece 1: ")
        else:
            assert said.startswith("CheckFailed: process 2 cannot go on after the exchange: the new piece 1: ")


@pytest.mark.slow
@pytest.mark.parametrize(("where", "kept"), [("1", True), ("carry", True), ("2", True), ("build", False)])
def test_a_killed_process_ends_all(tmp_path: Path, where: str, kept: bool) -> None:
    """Before all have received everything, the others still have what they had."""
    one = plan("1f1b", [3, 3])
    with rank_processes(4, tmp_path) as ranks:
        said = ranks.run(exchange_runs.killed, one, 2, where)
    assert said[2] == DEAD
    for process in (0, 1, 3):
        assert said[process].startswith(f"TransferFailed: process {process} "), said
        assert "another process has ended or failed" in said[process]
        assert said[process].endswith("as it was" if kept else "emptied")


def test_places() -> None:
    places = Places.of_hosts(2, (3, 1, 0, 2))
    assert places.of_process == (2, 1, 3, 0)
    assert [places.pipeline(process) for process in range(4)] == [1, 0, 1, 0]
    assert [places.rank(process) for process in range(4)] == [0, 1, 1, 0]
    assert Places.in_order(4, 2).of_process == (0, 1, 2, 3)
    for ranks, of_process, line in (
        (2, (0, 1, 1, 3), "places: found [0, 1, 1, 3], expected each of the places 0 to 3 once"),
        (3, (0, 1, 2, 3), "places: found 4 processes, expected whole pipelines of 3 ranks"),
    ):
        with pytest.raises(InvalidInput) as caught:
            Places(ranks, of_process)
        assert str(caught.value) == line
    with pytest.raises(InvalidInput, match="hosts: found process 7, expected 0 to 1"):
        Places.of_hosts(1, (0, 7))

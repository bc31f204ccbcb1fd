"""A device's table: measured here, gone on with, and what predictions take from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from runs.profiled_runs import measure_collectives
from suite.command_line import schedc

from schedc.costs.devices import device_named
from schedc.costs.efficiency import PHASES, efficiency_of, operator_s
from schedc.costs.operators.operator import CollectiveKind, Engine, Operator, OperatorWork, ProductShape
from schedc.errors import InvalidInput
from schedc.formats.operator_table import OperatorTable, operator_table_json, read_operator_table

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
H100 = device_named("h100")
SHAPE = (1, 4096, 4096, 8192)
FLOPS = 2 * 4096 * 4096 * 8192


def table_in(path: Path, **keys: Any) -> Path:
    """A file with these keys."""
    path.write_text(json.dumps({"format": "schedc.operators", "version": 1, "device": "h100", **keys}))
    return path


def measure(folder: Path, *more: str) -> OperatorTable:
    """What the command makes of the table that is there, or not."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    given = ("--accelerator", "h100", "--sequence", "32", "--repeats", "1", "--warmup", "1", "--device", "cpu")
    done = schedc("profile", "--operators", folder / "config.json", *given, *more, "-o", folder / "table.json")
    assert done.returncode == 0, done.stderr
    return read_operator_table(folder / "table.json")


def test_a_table_is_measured_and_gone_on_with(tmp_path: Path) -> None:
    """All products of the model are in it; what is there is not measured again, what is missing is."""
    first = measure(tmp_path)
    expected = {("matrix", (1, 32, *ends)) for ends in ((64, 192), (64, 64), (64, 256), (128, 64))} | {
        ("attention", (4, 32, 16, 16))
    }
    assert {(row[0], row[2:6]) for row in first.shares} == expected
    for engine, shape in expected:  # of attention the backward is whole
        assert [row[1] for row in first.shares if (row[0], row[2:6]) == (engine, shape)] == list(PHASES)[: 2 + (engine == "matrix")]
    assert all(row[6] > 0 for row in first.shares)
    assert set(first.constants.given()) == {"memory", "permute", "launch_s", "move_s"}
    marked = [(*row[:6], 0.5) for row in first.shares[:5]]
    kept = {**json.loads(operator_table_json(first)), "shares": marked, "constants": {"memory": 0.25}}
    table_in(tmp_path / "table.json", **kept)
    second = measure(tmp_path)
    assert list(second.shares[:5]) == marked and second.constants.given() == {"memory": 0.25}
    assert {row[:6] for row in second.shares} >= {row[:6] for row in first.shares}
    assert len(measure(tmp_path, "--tp", "2").shares) > len(second.shares)
    assert read_operator_table(tmp_path / "table.json") == measure(tmp_path)


def test_a_table_of_another_device_is_not_gone_on_with(tmp_path: Path) -> None:
    text = table_in(tmp_path / "table.json", device="a100").read_text()
    done = schedc("profile", "--operators", "llama3-8b", "--accelerator", "h100", "-o", tmp_path / "table.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "a table of a100, expected one of h100" in done.stderr
    assert (tmp_path / "table.json").read_text() == text


def test_collectives_of_processes_are_measured(two: Ranks) -> None:
    rows = two.run(measure_collectives)[0]
    assert [(kind, group) for kind, group, *_ in rows] == [(kind, 2) for kind in ("all-gather", "reduce-scatter", "all-to-all")] * 2
    assert [sent for *_, sent, _ in rows] == [4096.0] * 3 + [16384.0] * 3 and all(took_s > 0 for *_, took_s in rows)


def test_costs_take_products_and_constants_of_the_table(tmp_path: Path) -> None:
    rows = [["matrix", phase, *SHAPE, share] for phase, share in zip(PHASES, (0.5, 0.25, 0.125), strict=True)]
    rates = efficiency_of("h100", table_in(tmp_path / "t.json", shares=rows, constants={"launch_s": 1e-3, "memory": 0.5}))
    work = OperatorWork(flops=FLOPS)
    product = Operator(name="", shape=ProductShape(*SHAPE), forward=work, backward_input=work, backward_weight=work)
    for phase, share in zip(PHASES, (0.5, 0.25, 0.125), strict=True):
        assert operator_s(product, phase, H100, rates) == pytest.approx(FLOPS / (H100.flops_per_s * share) + 1e-3)
    grouped = Operator(name="", engine=Engine.GROUPED, shape=ProductShape(*SHAPE), forward=work)  # not in the table
    assert operator_s(grouped, "forward", H100, rates) == pytest.approx(FLOPS / (H100.flops_per_s * 0.7) + 1e-3)
    moved = Operator(name="", forward=OperatorWork(memory_bytes=1e9))
    assert operator_s(moved, "forward", H100, rates) == pytest.approx(1e9 / (H100.memory_bytes_per_s * 0.5) + rates.move_s)


def test_costs_take_collectives_by_kind_group_and_size(tmp_path: Path) -> None:
    rows = [["all-gather", 4, 1e6, 1e-3], ["all-gather", 4, 3e6, 2e-3], ["all-to-all", 2, 1e6, 5e-3]]
    rates = efficiency_of("h100", table_in(tmp_path / "t.json", collectives=rows))

    def took_s(sent: float, spans: int, kind: CollectiveKind, count: int = 1) -> float:
        work = OperatorWork(link_bytes=sent, collectives=count, spans=spans, collective=kind)
        return operator_s(Operator(name="", forward=work), "forward", H100, rates)

    gather, exchange = CollectiveKind.GATHER, CollectiveKind.EXCHANGE
    assert [took_s(sent, 4, gather) for sent in (1.0, 1e6, 2e6, 3e6, 5e6)] == pytest.approx([1e-3, 1e-3, 1.5e-3, 2e-3, 3e-3])
    assert took_s(4e6, 4, gather, 2) == pytest.approx(3e-3)  # two of 2 MB
    assert [took_s(sent, 2, exchange) for sent in (1e5, 2e6)] == pytest.approx([5e-3, 1e-2])
    for spans, kind in ((8, gather), (4, CollectiveKind.SCATTER)):  # not measured: by the links
        assert took_s(1e6, spans, kind) == pytest.approx(1e6 / (H100.link_bytes_per_s * 0.75) + 2e-5)


def test_the_command_takes_a_table(tmp_path: Path) -> None:
    """Half the share, and products take twice as long."""
    made = []
    for share in (0.4, 0.2):
        rows = [[engine, phase, 1, 4096, 4096, 4096, share] for engine in ("matrix", "attention") for phase in PHASES]
        table = table_in(tmp_path / f"{share}.json", shares=rows, constants={"launch_s": 1e-12, "move_s": 1e-12, "memory": 1e9})
        done = schedc("costs", "llama3-8b", "--table", table, "--json", "-o", tmp_path / "p.json")
        assert done.returncode == 0, done.stderr
        made.append(json.loads(done.stdout)["layers"][1])
    assert made[1]["forward_ns"] == pytest.approx(2 * made[0]["forward_ns"], rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": "a100"}, 'device: found "a100", expected "h100", whose costs are asked for'),
        ({"shares": [["matrix", "forward", 1, 1, 1, 1]]}, "shares[0]"),
        ({"shares": [["matrix", "sideways", 1, 1, 1, 1, 0.5]]}, "shares[0]"),
        ({"shares": [["matrix", "forward", 1, 1, 1, 0, 0.5]]}, "shares[0]"),
        ({"constants": {"memroy": 0.5}}, "memroy"),
        ({"collectives": [["all-gather", 1, 5, 1e-3]]}, "collectives[0]"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    path = table_in(tmp_path / "t.json", **keys)
    with pytest.raises(InvalidInput) as refused:
        efficiency_of("h100", path)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    done = schedc("costs", "llama3-8b", "--device", "h100", "--table", path, "-o", tmp_path / "p.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)

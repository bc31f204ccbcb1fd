"""The roofline, on a device with round numbers."""

from __future__ import annotations

import pytest

from schedc.costs.architecture import Attention, Setting
from schedc.costs.devices import DEVICES, Accelerator, device_named
from schedc.costs.efficiency import Efficiency, operator_s, sustained
from schedc.costs.operators.attention import attention_operators
from schedc.costs.operators.operator import CollectiveKind, Engine, Operator, OperatorWork
from schedc.errors import InvalidInput

ROUND = Accelerator(
    name="round",
    title="for tests",
    flops_per_s=1000.0,
    tf32_flops_per_s=100.0,
    memory_mib=1,
    memory_bytes_per_s=100.0,
    link_bytes_per_s=10.0,
    group=8,
    network_bytes_per_s=1.0,
    source="",
)
EXCHANGE = CollectiveKind.EXCHANGE
HALF = Efficiency(
    matrix=0.5, attention=0.25, scan=0.1, memory=0.5, link=0.5, exchange=0.25, launch_s=0.25, move_s=0.25, collective_s=0.5
)


@pytest.mark.parametrize(
    ("work", "engine", "expected_s"),
    [
        (OperatorWork(), Engine.MATRIX, 0.0),
        (OperatorWork(flops=1000, memory_bytes=50), Engine.MATRIX, 2 + 0.25),
        (OperatorWork(flops=1000, memory_bytes=150), Engine.MATRIX, 3 + 0.25),
        (OperatorWork(flops=1000, memory_bytes=150), Engine.ATTENTION, 4 + 0.25),
        (OperatorWork(flops=1000), Engine.SCAN, 10 + 0.25),
        (OperatorWork(memory_bytes=50), Engine.MATRIX, 1 + 0.25),
        (OperatorWork(link_bytes=20, collectives=1, spans=8), Engine.MATRIX, 4 + 0.5),
        (OperatorWork(link_bytes=20, network_bytes=20, collectives=1, spans=9), Engine.MATRIX, 40 + 0.5),
        (OperatorWork(link_bytes=20, network_bytes=1, collectives=1, spans=16), Engine.MATRIX, 4 + 0.5),
        (OperatorWork(link_bytes=20, network_bytes=5, collectives=1, collective=EXCHANGE, spans=16), Engine.MATRIX, 20 + 0.5),
        (OperatorWork(link_bytes=20, network_bytes=1, collectives=1, collective=EXCHANGE, spans=16), Engine.MATRIX, 7.6 + 0.5),
        (OperatorWork(flops=1000, link_bytes=20, collectives=2, spans=2), Engine.MATRIX, 2 + 0.25 + 4 + 1),
        (OperatorWork(flops=1000, link_bytes=20, collectives=1, spans=2, overlapped=True), Engine.MATRIX, 4 + 0.5),
        (OperatorWork(flops=5000, link_bytes=20, collectives=1, spans=2, overlapped=True), Engine.MATRIX, 10 + 0.25),
    ],
)
def test_a_piece_of_work_takes_the_longer_of_computing_and_moving(work: OperatorWork, engine: Engine, expected_s: float) -> None:
    operator = Operator(name="", engine=engine, backward_weight=work)
    assert operator_s(operator, "backward_weight", ROUND, HALF) == pytest.approx(expected_s)


def test_32_bit_numbers_take_the_other_peak() -> None:
    operator = Operator(name="", forward=OperatorWork(flops=1000))
    assert operator_s(operator, "forward", ROUND, HALF, element_bytes=4) == pytest.approx(20 + 0.25)


def test_one_share_of_the_peak_and_nothing_else() -> None:
    work = OperatorWork(flops=1000, memory_bytes=10**9, link_bytes=10**9, collectives=3, spans=100)
    operator = Operator(name="", engine=Engine.ATTENTION, forward=work, backward_input=OperatorWork(memory_bytes=10**9))
    assert operator_s(operator, "forward", ROUND, sustained(0.5)) == pytest.approx(2)
    assert operator_s(operator, "backward_input", ROUND, sustained(0.5)) == 0


def test_keys_and_values_go_round_a_ring() -> None:
    """4 devices: each gets the keys and values of the 3 others in F, and in B besides their gradients go round."""
    attention, length = Attention(heads=8, kv_heads=2, head_dim=16), 64
    whole = attention_operators(attention, 128, Setting(sequence_length=length))
    parts = attention_operators(attention, 128, Setting(sequence_length=length, context_parallel=4))
    (alone,) = [operator for operator in whole if operator.name == "attention"]
    (ring,) = [operator for operator in parts if operator.name == "attention"]
    assert ring.forward.flops == alone.forward.flops / 4
    assert ring.forward.link_bytes == 3 * (64 / 4) * 2 * 2 * 16 * 2
    assert ring.backward_input.link_bytes == 2 * ring.forward.link_bytes
    assert ring.forward.overlapped and not alone.forward.link_bytes


def test_devices_are_found_by_name_and_have_plausible_peaks() -> None:
    for name, device in DEVICES.items():
        assert device_named(name) is device and device.name == name
        assert device.source and device.title
        assert 1e14 < device.flops_per_s < 1e16
        assert device.tf32_flops_per_s < device.flops_per_s
        assert 5e11 < device.memory_bytes_per_s < 2e13
        assert device.network_bytes_per_s < device.link_bytes_per_s < device.memory_bytes_per_s
    with pytest.raises(InvalidInput, match='found the device "h10", expected one of v100, '):
        device_named("h10")

"""Tables of what delays cost, and times to a loss by the theory and by a table."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.periods import period_plan, random_period
from inputs.plans import small_plan

from schedc.errors import InvalidInput
from schedc.ir import Versions
from schedc.lower.run import run_of
from schedc.study.loss.convergence import ConvergenceConstants
from schedc.study.loss.delay_table import read_delay_table
from schedc.study.loss.time_to_loss import LossCandidate, Measurements, Theory, times_to_loss

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """
source = "a test"
[[measured]]
optimizer = "sgd"
delays = 2
tokens = 1.5
[[measured]]
optimizer = "sgd"
delays = 6
tokens = 3.5
[[measured]]
optimizer = "sgd"
delays = [3, 0, 1]
tokens = 1.2
[[measured]]
optimizer = "muon"
delays = 2
loss_above = 0.1
"""
CONSTANTS = ConvergenceConstants(initial_loss=4.0, smoothness=2.0, second_moment=1.0)
RATE = 0.125
MS = 10**6


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    path = tmp_path / "delays.toml"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("delays", "factor", "basis"),
    [
        ((0, 0, 0), 1.0, "no delay"),
        ((2, 2), 1.5, "measured"),
        ((1, 1, 1, 1), 1.25, "interpolated between largest delays of 0 and 2"),
        ((5, 5), 3.0, "interpolated between largest delays of 2 and 6"),
        ((3, 0, 1), 1.2, "measured"),
        ((7, 7), None, "the table ends at a largest delay of 6, and this has 7"),
        ((1, 0), None, "the table has no number of tokens for sgd with delays of 1..0"),
        ((2, 0, 1), None, "the table has no number of tokens for sgd with delays of [2, 0, 1]"),
    ],
    ids=str,
)
def test_the_table_answers_inside_its_range(table_path: Path, delays: tuple[int, ...], factor: float | None, basis: str) -> None:
    found = read_delay_table(table_path).factor("sgd", delays)
    assert (found.factor, found.basis) == (pytest.approx(factor) if factor else None, basis)


def test_the_table_says_what_it_has_where_tokens_are_missing(table_path: Path) -> None:
    table = read_delay_table(table_path)
    said = table.factor("muon", (2, 2)).basis
    assert said == (
        "the table has no number of tokens for muon with delays of 2 everywhere; it says only that the loss is 0.1 above"
    )
    with pytest.raises(InvalidInput, match=r'^optimizer: found "moun", expected one of sgd, muon; did you mean \'muon\'\?$'):
        table.factor("moun", (2, 2))


def test_a_list_is_of_its_stages_whatever_the_order_of_rows(tmp_path: Path) -> None:
    rows = [{"optimizer": "sgd", "delays": delays, "tokens": tokens} for delays, tokens in ((1, 1.1), ([1, 1], 1.9), (3, 1.5))]
    for number, order in enumerate((rows, rows[::-1])):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"measured": order}), encoding="utf-8")
        table = read_delay_table(path)
        assert [table.factor("sgd", delays).factor for delays in ((1, 1), (1, 1, 1), (2, 2, 2))] == [1.9, 1.1, pytest.approx(1.3)]


def test_the_published_table() -> None:
    table = read_delay_table()
    assert "marin-community/marin" in table.source and "6431" in table.source
    six = (5, 4, 3, 2, 1, 0)
    factors = [table.factor(optimizer, six).factor for optimizer in ("muon+prediction", "muon", "adamh")]
    assert factors == [1.23, 1.33, 2.44]
    assert table.factor("muon", (2, 1, 0)).factor == pytest.approx(1 + 0.33 * 2 / 5)
    assert table.factor("muon", (6, 5, 4, 3, 2, 1, 0)).factor is None
    assert table.factor("adamh", (2, 2)).basis.endswith("the loss is 0.744 above")


def test_a_table_is_read_from_json_too(tmp_path: Path) -> None:
    path = tmp_path / "delays.json"
    path.write_text(json.dumps({"measured": [{"optimizer": "sgd", "delays": [1, 0], "tokens": 1.1}]}), encoding="utf-8")
    assert read_delay_table(path).factor("sgd", (1, 0)).factor == 1.1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "measured: found nothing, expected a list of at least 1"),
        ('[[measured]]\noptimizer = "a"\ndelays = 1', r"measured\[0\]: found neither tokens nor loss_above, expected one of them"),
        ('[[measured]]\noptimizer = "a"\ndelays = -1', r"measured\[0\].delays: found -1, expected"),
        ('[[measured]]\noptimizer = "a"\ndelays = 1\ntokens = 0', r"measured\[0\].tokens: found 0, expected a number above 0"),
        (
            '[[measured]]\noptimizer = "a"\ndelays = 1\ntokens = 1e308',
            r"measured\[0\].tokens: found 1e\+308, expected a number above 0",
        ),
        (
            '[[measured]]\noptimizer = "a"\ndelays = [0, 0]\ntokens = 2',
            r"measured\[0\].tokens: found 2.0, expected 1, or no such row: others are compared with runs without delay",
        ),
        (TABLE + '[[measured]]\noptimizer = "sgd"\ndelays = 2\ntokens = 2', r"measured\[4\]: found sgd with the same delays twice"),
        ("[[measured]]\ndelay = 1", r"measured\[0\].delay: found an unknown key, .*did you mean 'delays'\?"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "delays.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=says):
        read_delay_table(path)


def candidates(synchronous_ms: int, period_ms: int) -> list[LossCandidate]:
    """Four stages: synchronous, stashed, 2BW, and one bounded that lies between."""
    return [
        LossCandidate(name="stash", period_ns=period_ms * MS, delays=(3, 2, 1, 0)),
        LossCandidate(name="2bw", period_ns=period_ms * MS, delays=(1, 1, 1, 1)),
        LossCandidate(name="synchronous", period_ns=synchronous_ms * MS, delays=(0, 0, 0, 0)),
        LossCandidate(name="bounded", period_ns=period_ms * MS, delays=(2, 2, 1, 0)),
    ]


def test_time_by_theory() -> None:
    """8 / (1/8 × (1 − D/16)): 64 updates without delay, 69 at D = 1, 86 at D = 4, 147 at D = 9."""
    found = times_to_loss(candidates(100, 80), Theory(constants=CONSTANTS, learning_rate=RATE, error=1.0))
    assert [(row.candidate.name, row.updates, row.time_ns) for row in found.rows] == [
        ("2bw", 69, 69 * 80 * MS),
        ("synchronous", 64, 64 * 100 * MS),
        ("bounded", 86, 86 * 80 * MS),
        ("stash", 147, 147 * 80 * MS),
    ]
    assert found.asynchrony_pays is True
    assert found.verdict == (
        "2bw (69 updates of 80 ms, 5.52 s) is the fastest; the best synchronous one, synchronous (64 updates of 100 ms, 6.4 s),"
        " takes 1.16 times as long: 1.25 times the period, 0.93 times the updates"
    )


def test_asynchrony_that_does_not_pay_is_said_with_its_numbers() -> None:
    found = times_to_loss(candidates(82, 80), Theory(constants=CONSTANTS, learning_rate=RATE, error=1.0))
    assert found.asynchrony_pays is False and found.fastest is not None and found.fastest.candidate.name == "synchronous"
    assert found.verdict == (
        "asynchrony does not pay: synchronous (64 updates of 82 ms, 5.248 s) is the fastest; the best asynchronous one, 2bw"
        " (69 updates of 80 ms, 5.52 s), takes 1.05 times as long: 0.98 times the period, 1.08 times the updates"
    )


def test_shares_make_the_theory_sharper() -> None:
    """The gradient is where nothing is delayed: as without delay."""
    known = LossCandidate(name="known", period_ns=MS, delays=(3, 0), shares=(0.0, 1.0))
    unknown = LossCandidate(name="unknown", period_ns=MS, delays=(3, 0))
    found = times_to_loss([unknown, known], Theory(constants=CONSTANTS, learning_rate=RATE, error=1.0))
    assert [(row.candidate.name, row.updates) for row in found.rows] == [("known", 64), ("unknown", 147)]
    assert found.asynchrony_pays is None and found.verdict.endswith("there is none without delays to compare with that is known to"
                                                                    " reach the loss")  # fmt: skip


def test_what_never_reaches_the_loss_is_last() -> None:
    far = LossCandidate(name="far", period_ns=1, delays=(5, 0))
    found = times_to_loss([far, *candidates(100, 90)], Theory(constants=CONSTANTS, learning_rate=RATE, error=1.0))
    assert found.rows[-1].candidate is far and found.rows[-1].time_ns is None
    assert found.rows[-1].basis.startswith("the delays alone cause an error of 1.56, which is not below 1;")
    alone = times_to_loss([far], Theory(constants=CONSTANTS, learning_rate=RATE, error=1.0))
    assert alone.fastest is None and alone.verdict.startswith("none of 1 candidates is known to reach the loss: far: the delays")


def test_time_by_table(table_path: Path) -> None:
    """A run without delay needs 1,000 tokens; an update has 10 of them, or 30."""
    made = [
        LossCandidate(name="synchronous", period_ns=100, delays=(0, 0), tokens=10),
        LossCandidate(name="2bw", period_ns=210, delays=(1, 1), tokens=30),
        LossCandidate(name="far", period_ns=1, delays=(9, 9), tokens=10),
    ]
    found = times_to_loss(made, Measurements(table=read_delay_table(table_path), optimizer="sgd", tokens=1000))
    assert [(row.candidate.name, row.updates, row.time_ns) for row in found.rows] == [
        ("2bw", 42, 42 * 210),
        ("synchronous", 100, 100 * 100),
        ("far", None, None),
    ]
    assert found.rows[0].basis == "1.25 times the tokens, interpolated between largest delays of 0 and 2"
    assert found.source == "a test; sgd" and found.asynchrony_pays is True


def test_a_rate_that_the_theory_does_not_hold_for_is_said_beside_the_verdict() -> None:
    rates = {rate: Theory(constants=CONSTANTS, learning_rate=rate, error=0.1).source for rate in (0.5, 2.0)}
    assert rates[2.0] == "theory (DynPipe, equation 3) at a learning rate of 2; the theory holds for η L of at most 1, and it is 4"
    assert rates[0.5].endswith("of 0.5")


def test_more_updates_than_can_be_counted_are_none() -> None:
    found = times_to_loss(candidates(100, 80), Theory(constants=CONSTANTS, learning_rate=RATE, error=1e-300))
    assert {row.basis for row in found.rows} >= {"more updates than can be counted"} and found.fastest is None
    assert found.verdict.startswith("none of 4 candidates is known to reach the loss")


def test_equal_times_are_not_worth_delays() -> None:
    made = [LossCandidate(name="late", period_ns=100, delays=(2,)), LossCandidate(name="now", period_ns=100, delays=(0,))]
    constants = ConvergenceConstants(initial_loss=1e-9, smoothness=1e-3, second_moment=1e-3)
    assert times_to_loss(made, Theory(constants=constants, learning_rate=RATE, error=1.0)).asynchrony_pays is False


def test_what_cannot_be_compared_is_refused(table_path: Path) -> None:
    made = candidates(100, 80)
    other = LossCandidate(name="larger", period_ns=1, delays=(0,), tokens=2)
    with pytest.raises(InvalidInput, match=r"^larger: tokens: found 2, expected the 1 of stash, as the theory does not say"):
        times_to_loss([*made, other], Theory(constants=CONSTANTS, learning_rate=RATE, error=1.0))
    for wrong in ([], [made[0], made[0]]):
        with pytest.raises(InvalidInput, match=r"^candidates: found .*, expected one or more, each with a name of its own$"):
            times_to_loss(wrong, Measurements(table=read_delay_table(table_path), optimizer="sgd", tokens=1))
    for tokens in (0, 10**400):
        with pytest.raises(InvalidInput, match=r"^tokens: found .*, expected a whole number of at least 1 and at most 10"):
            times_to_loss(made, Measurements(table=read_delay_table(table_path), optimizer="sgd", tokens=tokens))
    wrong_values = {"period_ns": (0, 10**400), "tokens": (0, 10**400), "delays": ((), (-1,), (10**400,))}
    for key, value in ((key, value) for key, values in wrong_values.items() for value in values):
        with pytest.raises(InvalidInput, match=rf"^x: {key}: found"):
            LossCandidate(**{"name": "x", "period_ns": 1, "delays": (0,), key: value})  # type: ignore[arg-type]


def test_plans_are_candidates() -> None:
    ends = small_plan()
    candidate = LossCandidate.of_plan(ends, update_ns=7, tokens=3)
    assert (candidate.period_ns, candidate.delays, candidate.tokens) == (
        ends.certificate.makespan_ns + 7,
        (0,) * len(ends.problem.stages),
        3,
    )
    period = period_plan(*random_period(Random(3), versions=Versions.TWO_BUFFERED))
    candidate = LossCandidate.of_plan(period, update_ns=7)
    assert (candidate.name, candidate.period_ns) == ("random, 2bw", period.certificate.makespan_ns)
    assert set(candidate.delays) == {1}
    with pytest.raises(InvalidInput, match="the plan of a run of steps"):
        LossCandidate.of_plan(run_of(period, 2))

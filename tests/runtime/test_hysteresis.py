"""When a move pays."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from schedc.errors import InvalidInput
from schedc.runtime.adapt.leading import Hysteresis

RULE = Hysteresis(cost_s=0.1, expected_steps=20, least_gain=0.02, rest_steps=5)
STEP_NS = 400_000_000


@pytest.mark.parametrize(
    ("gain_ns", "since_move", "back", "pays"),
    [
        (8_000_000, None, False, True),  # 2 % of the step, 0.16 s in all
        (7_999_999, None, False, False),
        (8_000_000, 5, False, True),
        (8_000_000, 4, False, False),
        (39_999_999, 4, False, False),
        (40_000_000, 0, False, True),  # 10 % of the step
        (40_000_000, 0, True, True),
        (0, None, False, False),
        (0, None, True, True),
        (0, 4, True, False),
        (-1, None, True, False),
    ],
)
def test_the_rule(gain_ns: int, since_move: int | None, back: bool, pays: bool) -> None:
    assert RULE.pays(STEP_NS, STEP_NS - gain_ns, since_move=since_move, back=back) is pays


def test_a_gain_that_does_not_pay_for_the_move() -> None:
    """Of a short step, 2 % are too little over the steps that are expected."""
    assert not RULE.pays(100_000_000, 96_000_000, since_move=None, back=False)
    assert RULE.pays(100_000_000, 94_000_000, since_move=None, back=False)


@given(running_ns=st.integers(0, 2**40), proposed_ns=st.integers(0, 2**40), less=st.integers(0, 2**20))
def test_a_better_plan_pays_where_a_worse_one_does(running_ns: int, proposed_ns: int, less: int) -> None:
    if RULE.pays(running_ns, proposed_ns, since_move=9, back=False):
        assert proposed_ns < running_ns
        assert RULE.pays(running_ns, max(0, proposed_ns - less), since_move=9, back=False)


@pytest.mark.parametrize("wrong", [{"cost_s": -1.0}, {"least_gain": float("nan")}, {"rest_steps": -2}])
def test_numbers_that_cannot_be(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidInput, match=rf"^hysteresis: {name}: found .*, expected a number from 0$"):
        Hysteresis(**wrong)  # type: ignore[arg-type]

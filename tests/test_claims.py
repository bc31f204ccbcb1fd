"""Bounds and proofs held against a model that shares no file with them; `benchmarks/compiler/claims.py` does it for thousands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from inputs.claim_problems import claim_problem
from oracles import claim_checks
from oracles.claim_checks import check_claims

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.ir.plan import BoundName
from schedc.verify.problem import verify_problem

QUICK, SLOW = (33, 34, 47, 50), (35, 43, 54)
"""Those on which the models end soon."""


def assert_hold(numbers: tuple[int, ...]) -> None:
    counts: Counter[str] = Counter()
    assert [(number, finding) for number in numbers for finding in check_claims(number, counts)] == []
    assert counts["problems"] == len(numbers)


def test_claims_hold() -> None:
    assert_hold(QUICK)


@pytest.mark.slow
def test_more_claims_hold() -> None:
    assert_hold(SLOW)


def test_problems_are_valid_and_the_same_for_the_same_number() -> None:
    for number in range(40):
        small, large = claim_problem(number)
        assert (small, large) == claim_problem(number)
        assert verify_problem(small) == ()
        assert 20 <= small.num_ops <= 60
        if large is not None:
            assert verify_problem(large.problem) == ()
            for one, other in zip(lower_bounds(small), lower_bounds(large.problem), strict=True):
                if one.name is BoundName.RESIDENCY:  # limits have room for all rests, which it may use
                    continue
                assert one.value_ns * large.unit_ns <= other.value_ns <= one.value_ns * large.unit_ns + large.slack_ns


@pytest.mark.parametrize("number", [34, 50])
def test_a_bound_that_is_too_high_is_told(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third above the best bound is above a schedule, and above what the other model finds."""

    def raised(problem: object) -> object:
        return [replace(bound, value_ns=bound.value_ns * 4 // 3) for bound in lower_bounds(problem)]

    monkeypatch.setattr(claim_checks, "lower_bounds", raised)
    kinds = {finding.kind.rpartition(": ")[2] for finding in check_claims(number, Counter())}
    assert {"too high", "above the optimum"} <= kinds

"""Plans broken on purpose, of graphs and slices too: refused, or as good as they claim. `mutations.py` makes 10,000 of them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs import plan_mutations
from inputs.plan_mutations import KINDS, KINDS_OF_GRAPHS, SURVIVED, mutated_plans

from schedc.verify.plan.checks import RANKS
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.verify.violation import Violation


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_no_broken_plan_is_accepted(tmp_path: Path, graphs: bool) -> None:
    found = [each for number in range(20) for each in mutated_plans(Random(f"1:{number}"), tmp_path, graphs=graphs)]
    assert [(kind, outcome) for kind, outcome, _ in found if outcome.startswith(SURVIVED)] == []
    assert {kind for kind, _, _ in found} == {kind.__name__ for kind in (KINDS_OF_GRAPHS if graphs else KINDS)}


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [False, True])
def test_without_its_rules_broken_plans_are_known_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    """Where the verifier looks at compute queues alone, what proves that a mutant is as good finds out about all the rest."""
    monkeypatch.setattr(plan_mutations, "check_plan", only_compute_queues)
    outcomes: dict[str, list[bool]] = {kind.__name__: [] for kind in KINDS_OF_GRAPHS}
    for number in range(10):
        for kind, outcome, _ in mutated_plans(Random(f"1:{number}"), tmp_path, graphs=graphs):
            outcomes[kind].append(outcome.startswith(SURVIVED))
    for name in ("drop_transfer", "swap_on_both_ends", "edit_channel", "edit_certificate", *(["reroute"] if graphs else [])):
        assert sum(outcomes[name]) > 0.2 * len(outcomes[name]) > 0, name  # some are certified anew, and so as good


def only_compute_queues(plan: Plan) -> tuple[Violation, ...]:
    """A verifier that lacks the rules of channels and certificate."""
    return (*verify_problem(plan.problem), *RANKS.broken(plan)) or verify_schedule(plan.problem, plan.schedule())

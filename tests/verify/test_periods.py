"""Plans of periods that are broken on purpose: refused, or by all of the verifier's own numbers what they claim to be."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from inputs.periods import period_plan, random_period

from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir import Channel, Kind, Op, Plan
from schedc.lower.run import run_of
from schedc.verify.plan.checks import verify_plan


@pytest.mark.parametrize("seed", range(20))
def test_sound_periods_hold_in_files_and_as_runs(seed: int) -> None:
    plan = period_plan(*random_period(Random(seed), largest=10**9))
    assert verify_plan(plan) == ()
    assert parse_plan(plan_json(plan), "plan.json") == plan
    run = run_of(plan, 3)
    assert verify_plan(run) == ()
    assert parse_plan(plan_json(run), "run.json") == run


def mutated(random: Random, plan: Plan) -> Plan:
    """The plan with one thing changed: two ops swapped, an op's step, one lost, one twice, or on another rank; or a claim."""
    queues = [list(rank.compute) for rank in plan.ranks]
    queue = random.choice(queues)
    at, count, claims = random.randrange(len(queue)), plan.problem.microbatches, plan.certificate
    what = random.choice(("swap", "step", "lose", "double", "move", "claim"))
    if what == "swap":
        other = random.randrange(len(queue))
        queue[at], queue[other] = queue[other], queue[at]
    elif what == "step":
        by = random.choice((-1, 1, 2)) * (1 if queue[at].kind is Kind.U else count)
        queue[at] = queue[at]._replace(microbatch=max(0, queue[at].microbatch + by))
    elif what == "lose":
        del queue[at]
    elif what == "double":
        queue.insert(random.randrange(len(queue)), queue[at])
    elif what == "move":
        random.choice(queues).append(queue.pop(at))
    else:
        name = random.choice(("makespan_ns", "delays", "versions", "peak_activation_bytes"))
        value = getattr(claims, name)
        changed = value + random.choice((-1, 1)) if isinstance(value, int) else (value[0] + 1, *value[1:])
        claims = replace(claims, **{name: changed})  # type: ignore[arg-type]
    ranks = tuple(replace(rank, compute=tuple(ops)) for rank, ops in zip(plan.ranks, queues, strict=True))
    return replace(plan, ranks=ranks, certificate=claims)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_periods_are_refused_or_are_what_they_claim(seed: int) -> None:
    random = Random(seed)
    plan, refused = period_plan(*random_period(random)), 0
    for _ in range(60):
        changed = mutated(random, plan)
        if changed == plan:
            continue
        if verify_plan(changed):
            refused += 1
            continue
        assert changed.certificate == plan.certificate  # orders that differ, and are as good by all that is claimed
        assert period_plan(changed.problem, changed.schedule()).certificate == plan.certificate
        assert verify_plan(run_of(changed, 2)) == ()
    assert refused > 10


def test_a_period_has_no_channels() -> None:
    plan = period_plan(*random_period(Random(1)))
    channel = Channel(name="send_next", peer=1, transfers=(Op(Kind.F, 0, 0),))
    broken = replace(plan, ranks=(replace(plan.ranks[0], channels=(channel,)), *plan.ranks[1:]))
    assert [violation.rule for violation in verify_plan(broken)] == ["ranks"]

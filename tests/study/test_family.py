"""Families: a plan for each of several conditions, a table that is right, and the pick of a job without a solver."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from oracles.brute_force import timing

from schedc.compile.certify import check_plan
from schedc.errors import CheckFailed, InvalidInput
from schedc.formats.family_file import family_json, parse_family, read_family
from schedc.formats.plan.plan_file import read_plan
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
from schedc.lower.problem import problem_under
from schedc.runtime.adapt.family import load_family
from schedc.solvers.common.base import SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.study.robust.family import compile_family, with_as_planned
from schedc.study.robust.requests import grid_of

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.robust.family import Made

PROBLEM = make_problem(3, 5, costs_ns=(18, 19, 11), in_flight=4)


def made_in(folder: Path) -> Made:
    conditions = with_as_planned(grid_of("each=30ns,60 ns", PROBLEM, option="--links"))
    return compile_family(PROBLEM, conditions, folder, settings=SearchSettings(method="rule-table"), job_sha256="f" * 64)


def test_the_table_says_what_each_plan_takes_and_the_file_gives_it_back(tmp_path: Path) -> None:
    made = made_in(tmp_path)
    family = made.family
    assert [name for name, _ in family.conditions] == ["as planned", "0-1=30ns", "1-2=30ns", "0-1=60ns", "1-2=60ns"]
    assert read_family(tmp_path / "family.json") == family == parse_family(family_json(family), "again")
    problems = [problem_under(PROBLEM, each) for _, each in family.conditions]
    for number, entry in enumerate(family.plans):
        plan = read_plan(tmp_path / entry.path)
        assert plan.problem == problems[number] and check_plan(plan) == ()
        assert entry.objective_ns == tuple(timing(each, plan.schedule())[0] for each in problems)
    for number in range(len(problems)):
        least_ns = min(plan.objective_ns[number] for plan in family.plans)
        assert family.plans[family.best(number)].objective_ns[number] == least_ns


def test_plans_that_are_there_are_kept_and_others_made_again(tmp_path: Path) -> None:
    made = made_in(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "family.json").unlink()
    (tmp_path / "plan-2.json").unlink()
    (tmp_path / "plan-1.json").write_bytes(before["plan-3.json"])  # for other conditions
    again = made_in(tmp_path)
    assert (made.kept, again.kept) == (0, 3)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "plan-2.json").write_text(json.dumps(json.loads(before["plan-2.json"])))  # the same plan, but not the same digest
    assert made_in(tmp_path).kept == 4
    assert load_family(tmp_path).plans == made.plans


def test_the_pick_is_the_plan_that_takes_least_under_what_was_measured(tmp_path: Path) -> None:
    made = made_in(tmp_path)
    loaded, random, proposed = load_family(tmp_path), Random(2), set()
    for _ in range(60):
        links = {ends: LinkState(latency_ns=random.randint(0, 80)) for ends in ((0, 1), (1, 0), (1, 2), (2, 1))}
        conditions = random.choice([Conditions(links=links), *(each for _, each in made.family.conditions)])
        running = random.choice(made.plans)
        takes_ns = [timing(problem_under(PROBLEM, conditions), plan.schedule())[0] for plan in made.plans]
        path = loaded.propose(running, conditions)
        proposed.add(path)
        if path is None:
            assert takes_ns[made.plans.index(running)] == min(takes_ns)
        else:
            assert takes_ns[int(path.stem.removeprefix("plan-"))] == min(takes_ns) < takes_ns[made.plans.index(running)]
    assert len(proposed) > 2
    assert loaded.propose(made.plans[0], None) is None
    assert loaded.propose(made.plans[0], AS_PLANNED) is None
    other = compile_family(
        make_problem(2, 5), [("as planned", AS_PLANNED)], tmp_path, settings=SearchSettings(method="1f1b")
    ).plans[0]
    with pytest.raises(InvalidInput, match="the plan has 2"):
        loaded.propose(other, AS_PLANNED)


def test_a_family_is_of_a_job_if_nothing_but_links_differs(tmp_path: Path) -> None:
    made = made_in(tmp_path)
    loaded = load_family(tmp_path)
    for plan in made.plans:  # a job may have been loaded with any of them
        assert loaded.for_job(plan) == made.plans
    first = f"{tmp_path}/plan-0.json"
    slower, roomier = make_problem(3, 5, costs_ns=(18, 19, 12), in_flight=4), make_problem(3, 5, costs_ns=(18, 19, 11), in_flight=5)
    for problem, place in ((slower, "costs.stages[0]"), (roomier, "costs.memory_limit_bytes[0]")):
        plan = plan_of(problem, constructive("1f1b")(problem))
        with pytest.raises(InvalidInput) as refused:
            loaded.for_job(plan)
        says = str(refused.value)
        assert says.startswith(f"{first}: {place}: found a plan of another job, expected one of that of plan 'test': the plan has ")
        assert "\n" not in says
    ranks = (replace(made.plans[1].ranks[0], compute=made.plans[1].ranks[0].compute[::-1]), *made.plans[1].ranks[1:])
    torn = replace(loaded, plans=(loaded.plans[0], replace(loaded.plans[1], ranks=ranks), *loaded.plans[2:]))
    with pytest.raises(CheckFailed, match=r"plan-1\.json: ranks\[0\]\.compute.*need-order"):
        torn.for_job(made.plans[0])


def test_what_is_no_family_is_refused_in_one_line(tmp_path: Path) -> None:
    made_in(tmp_path)
    with pytest.raises(InvalidInput, match=r"gone.family\.json"):
        load_family(tmp_path / "gone")
    table = json.loads((tmp_path / "family.json").read_text())
    for change, says in (
        ({"format": "schedc.plan"}, r"family\.json: format: "),
        ({"plans": table["plans"][:2]}, r"family\.json: plans: found 2 plans, expected 5, one for each of the conditions"),
        ({"plans": [{**each, "objective_ns": [1]} for each in table["plans"]]}, r"plans\[0\]\.objective_ns: found 1 values"),
        ({"conditions": [{"name": "x", "links": {"0-1": {}}, "best": 0}] * 5}, 'found "0-1", expected a directed link'),
        ({"plans": [{**each, "sha256": "0"} for each in table["plans"]]}, r"plan-0\.json: found a file with the sha256"),
    ):
        (tmp_path / "family.json").write_text(json.dumps(table | change))
        with pytest.raises(InvalidInput, match=says) as refused:
            load_family(tmp_path)
        assert "\n" not in str(refused.value)

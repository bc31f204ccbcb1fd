"""The sets of instances: complete, valid, exact, and in agreement with what was published for them."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from pathlib import Path

import pytest

from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.frontend.job import load_job
from schedc.ir.problem import Objective
from schedc.solvers.templates import TEMPLATES
from schedc.study.bench.instances import SETS, Instance, instances
from schedc.verify.problem import verify_problem

MS = 1_000_000
EXAMPLES = Path(__file__).parents[2] / "examples"
COUNTS = {
    "m70": 20,
    "m70-wave": 20,
    "m70-loop": 18,
    "pipemorph": 48,
    "zero-bubble": 72,
    "zero-bubble-span": 72,
    "random": 60,
    "large": 6,
}


def named(set_name: str, name: str) -> Instance:
    return next(instance for instance in instances(set_name) if instance.name == name)


def objective_ns(instance: Instance, template: str) -> int:
    """What the template reaches, having checked that it keeps the memory limit."""
    problem = instance.problem
    schedule = TEMPLATES[template].construct(problem)
    for peak, limit in zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True):
        assert limit is not None
        assert peak <= limit
    return simulate(problem, schedule).objective_ns(problem.objective)


def test_there_are_these_sets_and_no_others() -> None:
    assert {name: len(instances(name)) for name in SETS} == COUNTS


def test_names_are_unique_across_all_sets() -> None:
    names = [instance.name for set_name in SETS for instance in instances(set_name)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("set_name", SETS)
def test_every_problem_is_valid_and_feasible(set_name: str) -> None:
    for instance in instances(set_name):
        problem = instance.problem
        assert problem.name == instance.name
        assert verify_problem(problem) == ()
        for limit, least in zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True):
            assert limit is not None
            assert limit >= least


@pytest.mark.parametrize("set_name", SETS)
def test_a_set_is_the_same_every_time(set_name: str) -> None:
    assert instances(set_name) == instances(set_name)


@pytest.mark.parametrize("set_name", SETS)
def test_another_fused_backward_changes_it_the_names_and_what_is_published_alone(set_name: str) -> None:
    for plain, cheaper in zip(instances(set_name), instances(set_name, 0.85), strict=True):
        assert cheaper.name == cheaper.problem.name == f"{plain.name}-bw0.85"
        assert cheaper.published_best() is None
        assert verify_problem(cheaper.problem) == ()
        for a, b in zip(plain.problem.stages, cheaper.problem.stages, strict=True):
            assert b.backward_ns == (round(0.85 * (a.backward_input_ns[0] + a.backward_weight_ns[0])),)
            assert replace(b, backward_ns=a.backward_ns) == a
        assert replace(cheaper.problem, name=plain.name, stages=plain.problem.stages) == plain.problem


def test_a_fused_backward_of_one_is_the_set_itself() -> None:
    for plain, same in zip(instances("random"), instances("random", 1), strict=True):
        assert same.problem.stages == plain.problem.stages


def test_an_unknown_set_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="'m70-waves' is unknown; did you mean 'm70-wave'"):
        instances("m70-waves")


@pytest.mark.parametrize(
    ("name", "template", "makespan_ms"),
    [
        ("m70-2dc-0-0-case1", "1f1b", 2415),
        ("m70-2dc-2-2-case1", "1f1b", 4543),
        ("m70-2dc-0-0-case1", "zb-h1", 2128),
    ],
)
def test_m70_gives_the_known_makespans(name: str, template: str, makespan_ms: int) -> None:
    assert objective_ns(named("m70", name), template) == makespan_ms * MS


@pytest.mark.parametrize(
    ("set_name", "name", "example"),
    [
        ("m70", "m70-2dc-2-2-case1", "m70-2dc"),
        ("m70", "m70-4dc-2-2-case1", "m70-4dc"),
        ("m70-wave", "m70-wave-2dc-0.25-0.25-case1", "m70-wave"),
        ("zero-bubble", "zb-1.5B-p8-n24-linear-p", "zero-bubble"),
    ],
)
def test_instances_are_those_of_the_example_jobs(set_name: str, name: str, example: str) -> None:
    """But for the bytes of messages and the names of trunks, which change nothing here."""
    ours, theirs = named(set_name, name).problem, load_job(EXAMPLES / example / "job.toml").problem
    assert ours.paths == theirs.paths
    assert ours.path_of == theirs.path_of
    assert ours.memory_limit_bytes == theirs.memory_limit_bytes
    for mine, other in zip(ours.stages, theirs.stages, strict=True):
        assert mine.rank == other.rank
        assert mine.forward_ns == other.forward_ns
        assert mine.backward_input_ns == other.backward_input_ns
        assert mine.backward_weight_ns == other.backward_weight_ns
        assert mine.backward_ns == other.backward_ns
        assert mine.activation_bytes == other.activation_bytes
        assert mine.activation_after_input_bytes == other.activation_after_input_bytes
    costs = [
        {(link.source, link.destination): (link.latency_ns, link.occupancy_ns(0)) for link in problem.links}
        for problem in (ours, theirs)
    ]
    assert costs[0] == costs[1]


def test_a_case_3_of_m70_has_twice_the_microbatches_and_memory() -> None:
    one, three = (named("m70", f"m70-4dc-2-0.25-case{case}") for case in (1, 3))
    assert (one.problem.microbatches, three.problem.microbatches) == (16, 32)
    assert one.problem.memory_limit_bytes == (8 << 30,) * 8
    assert three.problem.memory_limit_bytes == (16 << 30,) * 8
    assert one.published == {"1F1B": 0.268, "ZBH1": 0.248, "ZBV": 0.337, "UDSub": 0.2, "UD": 0.197, "Wave": 0.214}
    assert three.published == {"UDSub": 0.138, "UD": 0.138, "Wave": 0.139}


def test_m70_compares_a_placement_with_its_own_kind() -> None:
    assert named("m70", "m70-2dc-0-0-case1").published_best() == ("ZBH1", 2128 * MS)
    assert named("m70-wave", "m70-wave-2dc-0-0-case1").published_best() == ("ZBV", 1888 * MS)


def test_two_sites_make_the_way_back_of_a_loop_slow() -> None:
    def slow(name: str) -> dict[tuple[int, int], str | None]:
        links = named("m70-loop", f"m70-loop-{name}-2-0.25-p").problem.links
        return {(link.source, link.destination): link.trunk for link in links if link.occupancy_ns(0) == 9_500_000}

    assert slow("link") == {(3, 4): None, (4, 3): None}
    assert slow("2dc") == {(3, 4): "0>1", (0, 7): "0>1", (4, 3): "1>0", (7, 0): "1>0"}


def test_a_loop_of_m70_has_waves_costs_and_memory() -> None:
    loop, wave = named("m70-loop", "m70-loop-free-0-0-p").problem, named("m70-wave", "m70-wave-2dc-0-0-case1").problem
    assert [stage.rank for stage in loop.stages] == [*range(8), *range(8)]
    assert {replace(stage, rank=0) for stage in loop.stages} == {replace(stage, rank=0) for stage in wave.stages}
    assert loop.memory_limit_bytes == wave.memory_limit_bytes
    assert named("m70-loop", "m70-loop-free-0-0-2p").problem.memory_limit_bytes == (16 << 30,) * 8


@pytest.mark.parametrize("set_name", ["pipemorph", "zero-bubble"])
def test_zb_h1_is_the_peers_best_with_memory_p_on_a_line(set_name: str) -> None:
    """The peers' values were made from these numbers by others: what ZB-H1 takes must agree to the last digit printed."""
    checked = 0
    for instance in instances(set_name):
        if instance.name.endswith("-linear-p"):
            assert objective_ns(instance, "zb-h1") == pytest.approx(instance.published_ns("best peer"), abs=0.05 * MS)
            checked += 1
    assert checked == {"pipemorph": 8, "zero-bubble": 12}[set_name]


def test_zb_v_is_the_peers_best_where_nothing_is_slow() -> None:
    for name, best_ms in (("pm-p4-n12-c0-V-p", 375), ("pm-p8-n32-c0-V-2p", 995)):
        instance = named("pipemorph", name)
        assert objective_ns(instance, "zb-v") == instance.published_ns("best peer") == best_ms * MS


def test_zb_v_with_a_slow_last_link_takes_what_the_peers_best_takes() -> None:
    instance = named("pipemorph", "pm-p8-n32-last60-V-p")
    assert objective_ns(instance, "zb-v") == instance.published_ns("best peer") == 3025 * MS


def test_interleaved_with_a_slow_first_link_takes_what_the_peers_best_takes() -> None:
    instance = named("pipemorph", "pm-p4-n12-first20-loop-2p")
    assert objective_ns(instance, "interleaved") == instance.published_ns("best peer") == 590 * MS


@pytest.mark.parametrize(("method", "template"), [("1F1B", "1f1b"), ("ZB-H1", "zb-h1")])
def test_bubble_rates_of_zero_bubble_agree_with_its_table_5(method: str, template: str) -> None:
    for instance in instances("zero-bubble-span"):
        if "-linear-p-" not in instance.name:
            continue
        stage = instance.problem.stages[0]
        work_ns = instance.problem.microbatches * (stage.forward_ns[0] + stage.backward_ns[0])
        cost_ns = objective_ns(instance, template)
        assert (cost_ns - work_ns) / cost_ns == pytest.approx(instance.published[method], abs=5.1e-5)
        assert cost_ns == pytest.approx(instance.published_ns(method), rel=1e-4)


def test_zero_bubble_compares_within_memory_and_placement() -> None:
    comparable = {
        name: named("zero-bubble-span", f"zb-28.3B-p32-n256-{name}-span").comparable
        for name in ("linear-p", "linear-2p", "loop-2p", "V-p")
    }
    assert comparable == {
        "linear-p": ("1F1B", "ZB-H1", "ZB-1p"),
        "linear-2p": ("1F1B", "ZB-H1", "ZB-1p", "ZB-H2", "ZB-2p"),
        "loop-2p": (),
        "V-p": ("ZB-V",),
    }
    without = named("zero-bubble-span", "zb-1.5B-p8-n24-V-p-span")
    assert "ZB-V" not in without.published
    assert without.published_best() is None


def test_the_span_set_differs_from_zero_bubble_in_the_objective_alone() -> None:
    for span, makespan in zip(instances("zero-bubble-span"), instances("zero-bubble"), strict=True):
        assert (span.problem.objective, makespan.problem.objective) == ("stage-span", "makespan")
        assert span.problem.stages == makespan.problem.stages
        assert span.problem.links == makespan.problem.links
        assert span.problem.memory_limit_bytes == makespan.problem.memory_limit_bytes


def test_random_problems_stay_within_what_is_promised() -> None:
    problems = [instance.problem for instance in instances("random")]
    for problem in problems:
        assert 3 <= problem.ranks <= 8
        assert 6 <= problem.microbatches <= 32
        slow = {frozenset((link.source, link.destination)) for link in problem.links if link.latency_ns}
        assert 1 <= len(slow) <= 2
        for rank, limit in enumerate(problem.memory_limit_bytes):
            held = sum(problem.stages[stage].activation_bytes for stage in problem.stages_on(rank))
            assert limit is not None
            assert problem.ranks * held <= limit <= 2 * problem.ranks * held
    assert len({problem.ranks for problem in problems}) == 6
    assert any(len({stage.forward_ns for stage in problem.stages}) > 1 for problem in problems)
    measured = problems[len(problems) // 2 :]
    for problem in measured:
        assert gcd(*(time for stage in problem.stages for time in stage.forward_ns)) < 10
    assert sum(len(problem.stages) > problem.ranks for problem in measured) == 20
    assert sum(problem.objective is Objective.STAGE_SPAN for problem in measured) == 15


def test_random_problems_are_pinned() -> None:
    """Numbers kept elsewhere refer to these seeds: they must not change."""
    first = instances("random")[0].problem
    assert (first.ranks, first.microbatches) == (8, 26)
    assert [stage.forward_ns[0] // MS for stage in first.stages] == [11, 9, 9, 20, 19, 14, 9, 11]
    last = instances("random")[29].problem
    assert (last.ranks, last.microbatches) == (6, 15)
    assert [stage.backward_weight_ns[0] // MS for stage in last.stages] == [13, 12, 14, 11, 15, 17]
    assert [limit and limit >> 20 for limit in last.memory_limit_bytes] == [12288, 6144, 6912, 8064, 7168, 7680]
    assert [(link.source, link.latency_ns, link.transfer_ns) for link in last.links if link.source < link.destination] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 42 * MS, 8 * MS),
        (3, 49 * MS, 2 * MS),
        (4, 0, 0),
    ]
    measured = instances("random")[-1].problem
    assert (measured.ranks, measured.microbatches, measured.placement) == (4, 31, "loop")
    assert [stage.forward_ns[0] for stage in measured.stages[:4]] == [19186155, 5158618, 16419360, 18391597]
    assert measured.memory_limit_bytes == (13238921031, 24474707563, 17963460066, 18869821608)

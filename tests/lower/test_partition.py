"""The balanced partition: beside brute force, beside published numbers, with memory, and even where layers are alike."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.measured_chains import BERT24_CUTS, BERT24_LOADS_US, BERT24_MESSAGE_US, CHAINS_US, LEAST_US

from schedc.ir.layout import Layout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower import partition
from schedc.lower.partition import balanced_partition, in_flight_of_1f1b
from schedc.lower.placement import place
from schedc.lower.problem import problem_of, static_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.ir.layout import Placement
    from schedc.ir.problem import Problem

SPEEDS = (Fraction(1), Fraction(1), Fraction(7, 10), Fraction(2))
NAMED = [("unidirectional", 1), ("loop", 2), ("loop", 3), ("wave", 2), ("wave", 3), ("bidirectional", 1)]


def chain(forward_ns: Sequence[int], ranks: int, **changes: Any) -> Workload:
    layers = tuple(
        Layer(forward_ns=(each,), backward_input_ns=(0,), backward_weight_ns=(0,), backward_ns=(0,)) for each in forward_ns
    )
    network = Network(site_of_rank=(0,) * ranks)
    return replace(Workload(name="chain", microbatches=8, layers=layers, devices=(Device(),) * ranks, network=network), **changes)


def random_chain(random: Random, ranks: int, layers: int) -> Workload:
    microbatches = random.randint(2, 5)

    def durations_ns(most: int) -> tuple[int, ...]:
        return tuple(1000 * random.randint(0, most) for _ in range(random.choice([1, 1, microbatches])))

    def layer() -> Layer:
        size = random.randint(0, 9)
        return Layer(
            forward_ns=durations_ns(9),
            backward_input_ns=durations_ns(9),
            backward_weight_ns=durations_ns(9),
            backward_ns=durations_ns(15),
            forward_again_ns=random.choice([None, durations_ns(9)]),
            activation_bytes=size,
            activation_after_input_bytes=random.randint(0, size),
            message_bytes=random.randint(0, 4),
            static_bytes=random.randint(0, 6),
        )

    return chain(
        [0],
        ranks,
        microbatches=microbatches,
        layers=tuple(layer() for _ in range(layers)),
        devices=tuple(Device(speed=random.choice(SPEEDS)) for _ in range(ranks)),
        split_backward=random.random() < 0.5,
    )


def random_placement(random: Random, ranks: int) -> Placement:
    if random.random() < 0.5:
        name, chunks = random.choice([each for each in NAMED if each[1] < 3])
        return place(name, ranks, chunks)
    rank_of_stage = [*range(ranks), *(random.randrange(ranks) for _ in range(random.randint(0, 2)))]
    random.shuffle(rank_of_stage)
    return place(rank_of_stage, ranks)


def stage_work_ns(problem: Problem, index: int) -> int:
    """The work of a stage in one step: F, and either all its BW or all its B and W, whichever is less."""
    stage = problem.stages[index]
    own = [microbatch for microbatch in range(problem.microbatches) if index in problem.path(microbatch)]

    def total(values: tuple[int, ...]) -> int:
        return sum(values[microbatch if len(values) > 1 else 0] for microbatch in own)

    fused, apart = total(stage.backward_ns), total(stage.backward_input_ns) + total(stage.backward_weight_ns)
    return total(stage.forward_ns) + (min(fused, apart) if problem.split_backward else fused)


def largest_work_ns(problem: Problem) -> int:
    works = [0] * problem.ranks
    for index, stage in enumerate(problem.stages):
        works[stage.rank] += stage_work_ns(problem, index)
    return max(works)


def layout_of(placed: Placement, layers_of_stage: Sequence[tuple[int, int]], recomputed: frozenset[int] = frozenset()) -> Layout:
    return Layout(
        layers_of_stage=tuple(layers_of_stage), rank_of_stage=placed.rank_of_stage, paths=placed.paths, recomputed=recomputed
    )


def all_layouts(workload: Workload, placed: Placement, recomputed: frozenset[int] = frozenset()) -> Iterator[Layout]:
    last = len(workload.layers)
    for inner in combinations(range(1, last), placed.pieces - 1):
        bounds = list(pairwise((0, *inner, last)))
        yield layout_of(placed, [bounds[piece] for piece in placed.piece_of_stage], recomputed)


@pytest.mark.parametrize("seed", range(300))
def test_beside_brute_force(seed: int) -> None:
    """Any placement, speeds, microbatches that differ, recomputation: no partition has a busiest rank with less work."""
    random = Random(seed)
    ranks = random.randint(1, 4)
    placed = random_placement(random, ranks)
    workload = random_chain(random, ranks, placed.pieces + random.randint(0, 4 if placed.pieces < 6 else 2))
    stages = len(placed.rank_of_stage)
    recomputed = frozenset(stage for stage in range(stages) if random.random() < 0.2)
    found = largest_work_ns(problem_of(workload, layout_of(placed, balanced_partition(workload, placed, recomputed), recomputed)))
    least = min(largest_work_ns(problem_of(workload, layout)) for layout in all_layouts(workload, placed, recomputed))
    rounding = 4 * stages * workload.microbatches
    assert found <= least + (rounding if any(device.speed != 1 for device in workload.devices) else 0)


@pytest.mark.parametrize("model", CHAINS_US)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_beside_published_numbers(model: str, ranks: int) -> None:
    workload, placed = chain(CHAINS_US[model], ranks), place("unidirectional", ranks)
    layers_of_stage = balanced_partition(workload, placed, frozenset())
    assert max(sum(CHAINS_US[model][slice(*bounds)]) for bounds in layers_of_stage) == LEAST_US[model][ranks]


def test_a_published_partition_with_its_messages() -> None:
    """Tarnawski's optimum of BERT-24 on 6 devices counts messages, too; the balanced partition is the same one."""
    workload, placed = chain(CHAINS_US["bert24"], 6), place("unidirectional", 6)
    layers_of_stage = balanced_partition(workload, placed, frozenset())
    assert tuple(first for first, _ in layers_of_stage) == BERT24_CUTS
    neighbours = (1, 2, 2, 2, 2, 1)
    loads_us = [
        sum(CHAINS_US["bert24"][slice(*bounds)]) + 2 * count * BERT24_MESSAGE_US
        for bounds, count in zip(layers_of_stage, neighbours, strict=True)
    ]
    assert loads_us == pytest.approx(BERT24_LOADS_US, abs=0.1)


@pytest.mark.parametrize(("name", "chunks"), NAMED)
def test_layers_alike_are_spread_evenly(name: str, chunks: int) -> None:
    """And the first pieces get one more, as ever."""
    for ranks in range(1, 5):
        placed = place(name, ranks, chunks)
        for layers in range(placed.pieces, placed.pieces + 9):
            layers_of_stage = balanced_partition(chain([1000] * layers, ranks), placed, frozenset())
            counts = [layers_of_stage[stage][1] - layers_of_stage[stage][0] for stage in placed.paths[0]]
            each, more = divmod(layers, placed.pieces)
            assert counts == [each + 1] * more + [each] * (placed.pieces - more)


def test_among_equally_good_ones_the_squares_decide() -> None:
    """The head alone is the bottleneck; the rest is still spread."""
    workload, placed = chain([1, 1, 1, 1, 1, 1, 50], 3), place("unidirectional", 3)
    assert balanced_partition(workload, placed, frozenset()) == ((0, 3), (3, 6), (6, 7))


@pytest.mark.parametrize("seed", range(100))
def test_memory(seed: int) -> None:
    """The best of the partitions with room for what 1F1B has in flight; or for one microbatch; or of all."""
    random = Random(seed)
    ranks = random.randint(2, 4)
    placed = place(random.sample(range(ranks), ranks), ranks) if seed % 2 else random_placement(random, ranks)
    stages = len(placed.rank_of_stage)
    workload = random_chain(random, ranks, placed.pieces + random.randint(1, 5 if placed.pieces < 6 else 2))
    workload = replace(
        workload,
        devices=tuple(
            random.choice([Device(capacity_bytes=n), Device(limit_bytes=n)]) for n in random.choices((20, 40, 80), k=ranks)
        ),
        static_bytes=(random.randint(0, 5),),
    )
    recomputed = frozenset(stage for stage in range(stages) if random.random() < 0.3)
    counts = in_flight_of_1f1b(placed, workload.microbatches)
    if seed % 2:
        assert counts == tuple(min(ranks - stage, workload.microbatches) for stage in range(ranks))

    def has_room(layout: Layout, in_flight: Sequence[int]) -> bool:
        problem = problem_of(workload, layout)
        held = [max(stage.recomputed_bytes for stage in problem.stages if stage.rank == rank) for rank in range(ranks)]
        for stage, count in zip(problem.stages, in_flight, strict=True):
            held[stage.rank] += count * stage.activation_bytes
        return all(limit is not None and own <= limit for own, limit in zip(held, problem.memory_limit_bytes, strict=True))

    layouts = list(all_layouts(workload, placed, recomputed))
    fitting = [[layout for layout in layouts if has_room(layout, each)] for each in (counts, (1,) * stages)]
    candidates = next((each for each in fitting if each), layouts)
    found = layout_of(placed, balanced_partition(workload, placed, recomputed), recomputed)
    assert found in candidates
    assert largest_work_ns(problem_of(workload, found)) == min(largest_work_ns(problem_of(workload, each)) for each in candidates)


def test_the_partition_follows_static_bytes() -> None:
    """The embedding and the head fill their ranks; the blocks go where there is room."""
    workload = chain([1] * 6, 3)
    layers = tuple(
        replace(layer, activation_bytes=1, static_bytes=50 if index in (0, 5) else 10)
        for index, layer in enumerate(workload.layers)
    )
    workload = replace(workload, layers=layers, devices=(Device(capacity_bytes=56),) * 3)
    placed = place("unidirectional", 3)
    found = balanced_partition(workload, placed, frozenset())
    assert found == ((0, 1), (1, 5), (5, 6))
    assert static_bytes(workload, layout_of(placed, found)) == (50, 40, 50)


@pytest.mark.parametrize(
    ("name", "forward_ns"), [(name, each) for name in ("loop", "wave") for each in ([1, *[3] * 16, 14], [2, *[5] * 15, 9, 9])]
)
def test_moving_cuts_finds_the_best_of_like_layers_with_a_head(
    monkeypatch: pytest.MonkeyPatch, name: str, forward_ns: list[int]
) -> None:
    """Where there are too many cuts to try them all."""
    workload, placed = chain([1000 * each for each in forward_ns], 4), place(name, 4, 2)
    monkeypatch.setattr(partition, "comb", lambda *_: 2**60)
    found = largest_work_ns(problem_of(workload, layout_of(placed, balanced_partition(workload, placed, frozenset()))))
    monkeypatch.setattr(partition, "comb", lambda *_: 0)
    assert found == largest_work_ns(problem_of(workload, layout_of(placed, balanced_partition(workload, placed, frozenset()))))


def test_too_many_layers_are_spread_evenly() -> None:
    workload, placed = chain([1] * 6000, 3), place("unidirectional", 3)
    assert balanced_partition(workload, placed, frozenset()) == ((0, 2000), (2000, 4000), (4000, 6000))

"""DynPipe's planner: equation 4 by hand, its program beside all partitions one by one, PipeDream's VGG-16, Algorithm 1."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benches.dynpipe import combined_ns, replicated_stages, stages_to_loss
from inputs.measured_chains import CHAINS_US, LEAST_US

from schedc.errors import Infeasible, InvalidInput, Unsupported
from schedc.ir import Device, Layer, Link, MessageCost, Network, Workload
from schedc.study.loss.convergence import ConvergenceConstants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FREE = Network(site_of_rank=(0,) * 16)


def chain(times_ns: Sequence[int], ranks: int, network: Network = FREE, message_bytes: int = 0, parameters: int = 0) -> Workload:
    """Layers of which a third is the forward."""
    return Workload(
        name="chain",
        microbatches=8,
        layers=tuple(
            Layer(
                forward_ns=(time // 3,),
                backward_input_ns=(0,),
                backward_weight_ns=(time - time // 3,),
                backward_ns=(time - time // 3,),
                message_bytes=message_bytes,
                gradient_message_bytes=message_bytes,
                parameters=parameters,
            )
            for time in times_ns
        ),
        devices=(Device(),) * ranks,
        network=network,
    )


@pytest.mark.parametrize(
    ("first", "second", "message", "printed", "default"),
    [
        (6, 4, 2, 6, 6),  # case 1: (2 + 6 + 4) / 2
        (6, 4, 6, 8, 8),  # case 1: messages in the way
        (4, 9, 2, 9, 9),  # case 2
        (6, 8, 2, 8, 8),  # the border of the two: both say the same
        (10, 2, 0, 6, 10),  # case 1 as printed is below what stage 1 alone computes
    ],
)
def test_equation_4_by_hand(first: float, second: float, message: float, printed: float, default: float) -> None:
    one, other, between = np.array([first]), np.array([second]), np.array([message])
    assert combined_ns(one, other, between, as_printed=True).tolist() == [printed]
    assert combined_ns(one, other, between, as_printed=False).tolist() == [default]


def random_chain(random: Random, ranks: int, count: int) -> Workload:
    """Layers that differ in all that the planner looks at, on links that differ, too."""

    def cost() -> MessageCost:
        return MessageCost(latency_ns=random.randint(0, 30), bytes_per_second=random.randint(1, 9) * 10**9)

    layers = chain([random.randint(0, 90) for _ in range(count)], ranks).layers
    sized = [
        replace(
            layer,
            message_bytes=random.randint(0, 90),
            gradient_message_bytes=random.randint(0, 90),
            parameters=random.randint(0, 20),
        )
        for layer in layers
    ]
    links = [Link.of(0, 1, cost(), None)] if random.random() < 0.5 else []
    network = Network(site_of_rank=(0,) * (ranks - 1) + (1,), within=cost(), between=cost(), links=tuple(links))
    return replace(chain([1], ranks, network), layers=tuple(sized), devices=(Device(speed=Fraction(3, 2)),) * ranks)


def every_plan(workload: Workload, count: int, most: int, *, as_printed: bool) -> Iterator[float]:
    """W of every way to cut the layers and to give all ranks to stages."""
    layers, ranks, network = workload.layers, workload.ranks, workload.network

    def sending(source: int, destination: int, size: float) -> float:
        link = network.link(source, destination)
        assert link is not None and link.bytes_per_second is not None
        return link.latency_ns + size * 1e9 / link.bytes_per_second

    for cuts in combinations(range(1, len(layers)), count - 1):
        for places in combinations(range(1, ranks), count - 1):
            of_layers, of_ranks = (0, *cuts, len(layers)), (0, *places, ranks)
            if max(np.diff(of_ranks)) > most:
                continue
            period = 0.0
            for stage in range(count):
                own = layers[of_layers[stage] : of_layers[stage + 1]]
                begin, end = of_ranks[stage : stage + 2]
                time = sum(layer.forward_ns[0] + layer.backward_ns[0] for layer in own) * 2 / 3 / (end - begin)
                if end - begin > 1:
                    size = sum(layer.parameters for layer in own) * 4 / (end - begin)
                    ring = [*range(begin, end), begin]
                    passes = [sending(one, other, size) for one, other in pairwise(ring)]
                    time += 2 * (end - begin - 1) * max(passes)
                if not stage:
                    period = time
                    continue
                before = layers[of_layers[stage] - 1]
                pairs = [(one, other) for one in range(of_ranks[stage - 1], begin) for other in range(begin, end)]
                there = max(sending(one, other, before.message_bytes / len(pairs)) for one, other in pairs)
                back = max(sending(other, one, before.gradient_message_bytes / len(pairs)) for one, other in pairs)
                first, between = period, there + back
                period = (between + first + time) / 2 if time < between + first else time
                period = period if as_printed else max(period, first)
            yield period


@pytest.mark.parametrize("as_printed", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_program_finds_the_best_of_all(seed: int, as_printed: bool) -> None:
    random = Random(seed)
    ranks, count = random.randint(2, 5), random.randint(3, 6)
    workload = random_chain(random, ranks, count)
    for stages in range(1, min(ranks, count) + 1):
        for most in range(-(-ranks // stages), ranks + 1):
            found = replicated_stages(workload, stages, most_replicas=most, as_printed=as_printed)
            assert found.period_ns == pytest.approx(min(every_plan(workload, stages, most, as_printed=as_printed)))
            assert sum(found.replicas) == ranks and max(found.replicas) <= most and len(found.layers) == stages
            assert [first for first, _ in found.layers] == [0, *(last for _, last in found.layers[:-1])]
            assert found.layers[-1][1] == count and all(first < last for first, last in found.layers)


@pytest.mark.parametrize("name", ["vgg16", "gnmt"])
def test_a_straight_pipeline_with_free_messages_is_pipedream_s(name: str) -> None:
    """The busiest stage of PipeDream's own planner, on its own profile; as printed W is below it, which no worker can keep."""
    for stages, least_us in LEAST_US[name].items():
        workload = chain(CHAINS_US[name], stages)
        found = replicated_stages(workload, stages, most_replicas=1)
        loads = [sum(CHAINS_US[name][first:last]) for first, last in found.layers]
        assert found.period_ns == max(loads) == least_us and found.replicas == (1,) * stages
        printed = replicated_stages(workload, stages, most_replicas=1, as_printed=True)
        assert printed.period_ns < least_us
        assert max(sum(CHAINS_US[name][first:last]) for first, last in printed.layers) >= least_us


def test_replicas_divide_a_microbatch() -> None:
    """Four workers: the heavy layer gets three where messages and gradients are free."""
    found = replicated_stages(chain([3000, 1000], 4), 2)
    assert (found.layers, found.replicas, found.period_ns) == (((0, 1), (1, 2)), (3, 1), 1000.0)
    slow = Network(site_of_rank=(0,) * 4, within=MessageCost(bytes_per_second=10**9))
    # a ring of 2 is two passes of half of 4 × 300 bytes, 1,200 ns; of 3, four passes of a third, 1,600 ns
    found = replicated_stages(chain([3000, 1000], 4, slow, parameters=300), 2)
    assert (found.replicas, found.period_ns) == ((3, 1), 2600.0)
    found = replicated_stages(chain([3000, 1000], 4, slow, message_bytes=1000, parameters=300), 1)
    assert (found.replicas, found.period_ns) == ((4,), 1000 + 6 * 4 * 600 / 4)


CONSTANTS = ConvergenceConstants(initial_loss=4.0, smoothness=2.0, second_moment=1.0)


def test_algorithm_1_weighs_updates_against_their_time() -> None:
    """Updates by equation 3 with D = (S − 1)²; as printed, with 2 S³, no number of updates suffices for two stages and more."""
    network = Network(site_of_rank=(0,) * 4, within=MessageCost(latency_ns=10, bytes_per_second=10**9))
    workload = chain([300] * 12, 4, network, message_bytes=100, parameters=10**6)
    rows = stages_to_loss(workload, CONSTANTS, learning_rate=0.125, error=1.0)
    by_stages = {len(row.stages.layers): row for row in rows}
    assert [by_stages[count].needed.updates for count in (1, 2, 3, 4)] == [64, 69, 86, 147]
    assert [row.time_ns for row in rows] == sorted(row.time_ns or 0 for row in rows)
    for count, row in by_stages.items():
        assert row.needed.updates is not None and row.time_ns == row.needed.updates * row.stages.period_ns
        assert row.stages == replicated_stages(workload, count)
    printed = stages_to_loss(workload, CONSTANTS, learning_rate=0.125, error=1.0, as_printed=True)
    assert [(len(row.stages.layers), row.needed.updates) for row in printed] == [(1, 74), (2, None), (3, None), (4, None)]


def test_fewer_stages_win_where_delays_cost_more_than_they_save() -> None:
    """Layers that one worker each takes: replicas cost nothing here, so W is the same for all and no delay is best."""
    rows = stages_to_loss(chain([400] * 4, 4), CONSTANTS, learning_rate=0.125, error=1.0)
    assert [len(row.stages.layers) for row in rows] == [1, 2, 3, 4]


def test_what_it_cannot_plan_is_refused() -> None:
    workload = chain([1, 2, 3], 4)
    for stages, most, says in ((4, 4, "found 4 stages, expected 1 to 3"), (1, 2, "found 1 stages, expected 2 to 3")):
        with pytest.raises(InvalidInput, match=rf"^chain: {says} for 3 layers and 4 workers with at most {most} in a stage$"):
            replicated_stages(workload, stages, most_replicas=most)
    with pytest.raises(InvalidInput, match=r"^chain: found 5 workers, expected 1 to 4, the ranks$"):
        replicated_stages(workload, 2, workers=5)
    with pytest.raises(Unsupported, match=r"workers of one speed"):
        replicated_stages(replace(workload, devices=(Device(), *(Device(speed=Fraction(1, 2)),) * 3)), 2)
    twice = tuple(replace(layer, position=(0, 1)) for layer in workload.layers)
    with pytest.raises(Unsupported, match=r"takes a chain of layers"):
        replicated_stages(replace(workload, layers=twice), 2)
    apart = Network(site_of_rank=(0, 0, 1, 1))
    with pytest.raises(Infeasible, match=r"^chain: no links connect 4 ranks as 3 stages"):
        replicated_stages(replace(workload, network=apart), 3)
    given = Network(site_of_rank=(0,) * 4, within=MessageCost(transfer_ns=8))
    with pytest.raises(Unsupported, match=r"the time of a message instead of a bandwidth"):
        replicated_stages(replace(workload, network=given), 2)
    straight = replicated_stages(replace(workload, network=given), 2, workers=2, most_replicas=1)
    assert straight.period_ns == (16 + 3 + 3) / 2

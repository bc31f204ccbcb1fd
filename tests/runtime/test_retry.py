"""When a channel fails, on whichever end and at whatever point, the step runs again, with the same gradients bit by bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, strategies as st
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import retry_runs
from runs.faults import Faults
from runs.processes import DEAD, Ranks, rank_processes
from runs.retry_runs import Options
from suite.example_counts import examples
from torch import nn

from schedc.errors import Unsupported
from schedc.ir.ops import Kind, Op
from schedc.ir.problem import DataParallel
from schedc.runtime.common.boundary import BoundaryMeta, TensorMeta
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.execution.channels import Receiver, Sender
from schedc.runtime.session.retry import StepStart
from schedc.runtime.transports.base import Ends
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.plan import Plan

NONE = Faults()
KIND = TensorMeta(torch.float32, (1,))


def planned(method: str = "1f1b", ranks: int = 2, microbatches: int = 4, **options: Any) -> Plan:
    problem = make_problem(ranks, microbatches, **options)
    return plan_of(problem, constructive(method)(problem))


def assert_equal(results: Sequence[Any], *concerned: int) -> None:
    """All steps are as on sound channels; each of these ranks has warned once that the delegate takes over, and no other has.

    Where one was late, gloo was connected anew before.
    """
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        assert result["different"] == []
        assert result["told_when_sound"] == []
        told = [said for said in result["told"] if " was late (" not in said]
        assert len(told) == (rank in concerned), result["told"]
        assert all("gloo has failed (" in said and "; the delegate carries" in said for said in told)


calls = st.dictionaries(st.integers(0, 16), st.sampled_from(["raise", "late", "lost"]), max_size=2)


@pytest.mark.slow
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_failures_anywhere(two: Ranks, data: st.DataObject) -> None:
    """On both ends at once, before and after the tensor has come: random numbers, statistics and gradients are as on sound ones."""
    faults = [[Faults(send=data.draw(calls), receive=data.draw(calls), times=2)] for _ in range(2)]
    options = Options(accumulate=data.draw(st.booleans()))
    method = data.draw(st.sampled_from(["1f1b", "zb-h1"]))
    results = two.run(retry_runs.compare, planned(method), faults, options)
    used = any(own.receive.keys() & set(range(16)) for (own,) in faults)
    sends = any(own.send.keys() & set(range(16)) for (own,) in faults)
    late = any("late" in [*own.send.values(), *own.receive.values()] for (own,) in faults)
    if (used or not sends) and not late:
        assert_equal(results, *((0, 1) if used else ()))
    else:  # what the wait for a send says after the last step has no consequence, and who is late now and then is never replaced
        assert all(isinstance(result, dict) and result["different"] == [] for result in results)
        assert all(late or len(result["told"]) <= 1 for result in results)


@pytest.mark.slow
def test_a_transfer_that_is_lost_without_a_word(two: Ranks) -> None:
    """The sender believes it sent; the receiver's patience ends, and then both know; it is no better when the step runs again."""
    faults = [[Faults(send={2: "lose"})], [NONE]]
    assert_equal(two.run(retry_runs.compare, planned(), faults, Options(timeout_s=5.0)), 0, 1)


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_channel_that_does_not_connect(two: Ranks, culprit: int) -> None:
    """Both ranks take the next one, before the first step."""
    faults = [[Faults(connect=rank == culprit)] for rank in range(2)]
    results = two.run(retry_runs.compare, planned(), faults, Options(steps=2))
    assert_equal(results, 0, 1)
    assert all("gloo" not in result["by_step"][-1] for result in results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "culprit"),
    [
        (Faults(receive={2: "lost"}), 1),
        (Faults(send={2: "raise"}), 2),
    ],
)
def test_two_ranks_of_four_are_concerned(four: Ranks, faults: Faults, culprit: int) -> None:
    """They warn once each, and theirs is the delegate from then on; the others run the step again on the channels they have."""
    pair = frozenset({(1, 2), (2, 1)})
    failing = Faults(send=faults.send, receive=faults.receive, wires=pair)
    by_rank = [[failing if rank == culprit else NONE] for rank in range(4)]
    results = four.run(retry_runs.compare, planned(ranks=4), by_rank, Options())
    assert_equal(results, 1, 2)
    for rank, result in enumerate(results):
        last, before = result["by_step"][-1], result["by_step"][-2]
        by_way = {way: last.get(way, 0) - before.get(way, 0) for way in ("gloo", "delegate")}
        one_neighbour = rank in (0, 3)
        assert by_way == {"gloo": 2 * 4, "delegate": 0 if one_neighbour else 2 * 4}
        assert result["recorded"] == [0, 1, 2, 3], "an observer may forget what did not count"


@pytest.mark.slow
def test_the_last_transfer_of_a_step(four: Ranks) -> None:
    """All other ranks have nothing left to do, and must not have left the step."""
    failing = Faults(receive={7: "lost"})
    assert_equal(four.run(retry_runs.compare, planned(ranks=4), [[failing], [NONE], [NONE], [NONE]], Options()), 0, 1)


@pytest.mark.slow
def test_failures_of_several_pairs_at_once(four: Ranks) -> None:
    failing = Faults(receive={5: "lost"})
    results = four.run(retry_runs.compare, planned(ranks=4), [[failing], [NONE], [NONE], [failing]], Options())
    assert_equal(results, 0, 1, 2, 3)


@pytest.mark.slow
def test_a_second_failure_when_the_step_runs_again(two: Ranks) -> None:
    """There is a third channel; both failures are told."""
    faults = [[Faults(receive={3: "lost"}), NONE], [NONE, Faults(receive={1: "raise"})]]
    results = two.run(retry_runs.compare, planned(), faults, Options())
    for result in results:
        assert result["different"] == []
        assert len(result["told"]) == 2
        assert "; gloo carries" in result["told"][0] and "; the delegate carries" in result["told"][1]


@pytest.mark.slow
def test_a_failure_in_the_step_before_a_move_to_another_plan(two: Ranks) -> None:
    """The offers are looked at once in a step, however often it runs."""
    faults = [[Faults(receive={5: "lost", 9: "lost"})], [NONE]]
    results = two.run(retry_runs.compare, planned(), faults, Options(swap_to=planned("gpipe")))
    assert_equal(results, 0, 1)
    assert results[0]["swapped"] == results[1]["swapped"]
    assert results[0]["swapped"][0][0] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(("zero", "accumulate"), [(0, True), (1, False)])
def test_pipelines_that_train_together(four: Ranks, zero: int, accumulate: bool) -> None:
    """A channel of the first fails: the step runs again in both, and their collectives match."""
    parallel = DataParallel(size=2, zero_stage=zero, reduce_scatter_ns=(1, 1), all_gather_ns=(1, 1) if zero else ())
    problem = replace(make_problem(2, 4), data_parallel=parallel)
    plan = plan_of(problem, constructive("1f1b")(problem))
    faults = [[NONE], [Faults(receive={6: "lost"})], [NONE], [NONE]]
    assert_equal(four.run(retry_runs.compare, plan, faults, Options(accumulate=accumulate)), 0, 1)


@pytest.mark.slow
def test_replicas_in_the_pipeline(four: Ranks) -> None:
    plan = planned("chimera", 4, 8, placement="bidirectional")
    pair = frozenset({(1, 2)})
    faults = [[NONE], [NONE], [Faults(receive={6: "lost"}, wires=pair)], [NONE]]
    assert_equal(four.run(retry_runs.compare, plan, faults, Options(steps=3)), 1, 2)


def test_a_peer_that_is_late_is_no_channel_that_fails(two: Ranks) -> None:
    """It may write a checkpoint between two steps."""
    assert_equal(two.run(retry_runs.compare, planned(), [[NONE], [NONE]], Options(late_s=0.5, steps=3)))


@pytest.mark.parametrize("times", [1, 3])
def test_a_peer_that_is_later_than_the_limit(two: Ranks, times: int) -> None:
    """It has paused: the channel is connected anew, the step runs again, and nothing else takes the channel's place."""
    faults = [[Faults(receive={2: "late"}, times=times)], [NONE]]
    for result in two.run(retry_runs.compare, planned(), faults, Options(steps=3)):
        assert result["different"] == []
        assert "delegate" not in result["by_step"][-1]
        assert len(result["told"]) == times
        for said in result["told"]:
            assert said.endswith("ranks 0 and 1, one was late (no answer in 60 s); gloo is connected anew, and the step runs again")


@pytest.mark.parametrize("recovery_s", [0.0, 60.0])
def test_a_peer_that_pauses_for_longer_than_twice_the_limit(two: Ranks, recovery_s: float) -> None:
    """It is waited for if the job says so; if not, who waits for it names it."""
    options = Options(timeout_s=2.0, late_s=6.0, recovery_s=recovery_s, steps=3)
    results = two.run(retry_runs.compare, planned(), [[NONE], [NONE]], options)
    if recovery_s:
        assert all(isinstance(result, dict) and result["different"] == [] for result in results), results
        assert all("delegate" not in result["by_step"][-1] for result in results)
    else:
        assert "TransferFailed" in results[1] and "rank 0" in results[1] and "no answer in 4 s" in results[1], results


def test_a_peer_that_is_late_in_every_attempt(two: Ranks) -> None:
    """It ends the step, and is named; no other channel would make it faster."""
    results = two.run(retry_runs.compare, planned(), [[Faults(receive={2: "late"})], [NONE]], Options(steps=3))
    assert results[0] == results[1]
    assert "waits for" in results[0] and "from rank 1" in results[0] and "no answer in 60 s" in results[0], results[0]


@pytest.mark.parametrize("way", ["kill", "raise"])
def test_a_peer_that_ends_is_no_channel_that_fails(tmp_path_factory: pytest.TempPathFactory, way: str) -> None:
    """All ranks know, long before a wait would give up; the step does not run again."""
    with rank_processes(4, tmp_path_factory.mktemp("ends")) as ranks:
        results = ranks.run(retry_runs.fail, planned(ranks=4, microbatches=8), 2, way, 600.0)
    for rank, said in enumerate(results):
        if rank != 2:
            assert said[0].startswith(f"TransferFailed: rank {rank}") and "the connection is lost; rank " in said[0]
            assert "\n" not in said[0] and said[-1].startswith("InvalidInput: the pipe is closed")
        else:
            assert said == DEAD if way == "kill" else said[0] == "ValueError: this stage cannot go on"


@pytest.mark.slow
def test_a_peer_that_is_stuck_is_waited_for_no_longer_than_said(tmp_path_factory: pytest.TempPathFactory) -> None:
    with rank_processes(2, tmp_path_factory.mktemp("stuck")) as ranks:
        (said,) = ranks.run(retry_runs.fail, planned(), 0, "stop", 3.0, of=[1])
    assert said[0].startswith("TransferFailed: rank 1 waits until rank 0 has received all of the step: no answer in 6 s")


def test_no_channel_is_left(two: Ranks) -> None:
    """The last one fails: one line, on both ranks the same."""
    faults = [[Faults(receive={3: "lost"})] * 2, [NONE] * 2]
    results = two.run(retry_runs.compare, planned(), faults, Options(delegate=False))
    assert results[0] == results[1]
    assert results[0].startswith(
        "TransferFailed: rank 0: BW0.3 waits for BW1.3 from rank 1 on recv_next: the connection is lost; rank 1"
    )


def test_a_buffer_that_changes_for_the_first_time(two: Ranks) -> None:
    """It was not kept: the step cannot run again, and says so; nobody trains on."""
    results = two.run(retry_runs.change_suddenly, planned(), [NONE, Faults(receive={5: "lost"})])
    assert results[1].startswith("Unsupported: a channel has failed, and the step cannot run again: the buffer 'bias' of a Sudden")
    assert results[0] == f"Unsupported: rank 1: {results[1].partition(': ')[2]}"


@pytest.mark.parametrize("method", [False, True])
def test_a_loss_with_weights_of_its_own(two: Ranks, method: bool) -> None:
    """Their gradients and buffers are put back as the stages' are."""
    sound = two.run(retry_runs.lose_with_weights, planned(), [NONE, NONE], method)
    again = two.run(retry_runs.lose_with_weights, planned(), [NONE, Faults(receive={5: "lost"})], method)
    assert sound == again and sound[1][0][0] != 0


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_a_batch_that_a_step_changes_in_place(two: Ranks, what: str) -> None:
    """The second run would find another batch: it is refused."""
    results = two.run(retry_runs.change_the_batch, planned(), [NONE, Faults(receive={2: "lost"})], what)
    culprit = 0 if what == "inputs" else 1
    assert results[culprit].startswith("Unsupported: a channel has failed, and the step cannot run again: the batch of shape [")
    assert results[1 - culprit] == f"Unsupported: rank {culprit}: {results[culprit].partition(': ')[2]}"


def test_a_stage_that_raises_on_zeros(two: Ranks) -> None:
    """Its error says that a channel had failed, which is the cause."""
    results = two.run(retry_runs.raise_on_zeros, planned(), [NONE, Faults(receive={2: "lost"})])
    assert results[1] == "ValueError: nothing to normalize by"
    assert (
        results[1]
        .notes[-1]
        .startswith("before that a channel has failed, and zeros came in place of tensors: rank 1: F1.2 waits for")
    )


@pytest.mark.slow
def test_the_first_transfer_is_lost_without_a_word(four: Ranks) -> None:
    """The ranks behind the one that waits for it wait longer than it does: a header cannot come another way."""
    faults = [[NONE], [Faults(send={0: "lose"}, wires=frozenset({(1, 2)}))], [NONE], [NONE]]
    results = four.run(retry_runs.compare, planned(ranks=4, microbatches=8), faults, Options(timeout_s=5.0, steps=2))
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        assert result["different"] == []
        assert rank in (0, 3) or any("between ranks 1 and 2, gloo has failed (no answer in 5 s)" in told for told in result["told"])


class Scripted:
    """A transport whose receives give a number, or raise."""

    def __init__(self, error: Exception | None = None, before: Callable[[], None] = lambda: None) -> None:
        self.error = error
        self.before = before
        self.used = 0

    def send(self, tensor: torch.Tensor, tag: int) -> Scripted:
        self.used += 1
        if isinstance(self.error, ConnectionLost):
            raise self.error
        return self

    def receive(self, kind: TensorMeta, tag: int) -> Scripted:
        self.used += 1
        return self

    def wait(self, timeout_s: float) -> torch.Tensor:
        self.before()
        if self.error is not None:
            raise self.error
        return torch.full((1,), 1.0)


def wire_of(count: int) -> Wire:
    transfers = tuple(Op(Kind.F, 0, microbatch) for microbatch in range(count))
    messages = tuple(Message(False, 0, 1, microbatch, 0) for microbatch in range(count))
    return Wire(source=0, destination=1, name="send_next", receiver_name="recv_prev", transfers=transfers, messages=messages)


@pytest.mark.parametrize("error", [ConnectionLost("the card is gone"), NoAnswer("nothing came")])
def test_what_has_failed_is_used_no_more(error: Exception) -> None:
    """Its failure is noted once; zeros come, of the right kind, and nothing is sent."""
    data: Any = Scripted(error)
    found: list[str] = []
    boundaries = BoundaryMeta({(0, 0): (KIND,)})

    def failing(doing: str, _: Exception) -> None:
        found.append(doing)

    receiver = Receiver(wire_of(3), Ends(data, data), boundaries, 1.0, failing)
    sender = Sender(wire_of(3), Ends(data, data), boundaries, 1.0, failing)
    receiver.begin()
    for at in range(3):
        (value,) = receiver.take(at, Op(Kind.F, 1, at))
        assert value is not None and value.tolist() == [0.0]
        sender.send(at, (torch.ones(1),))
    sender.flush()
    assert data.used == (2 if isinstance(error, ConnectionLost) else 4), "its first wait tells the sender that nothing is taken"
    assert [said.partition(":")[0] for said in found] == ["rank 1", "rank 0 sends F0.0 to rank 1 on send_next"]


def test_a_device_that_is_broken_is_no_channel_that_fails() -> None:
    """Any channel would meet the same error: it is raised as what it is."""
    data: Any = Scripted(torch.AcceleratorError("CUDA error: device-side assert triggered"))
    receiver = Receiver(wire_of(1), Ends(data, data), BoundaryMeta({(0, 0): (KIND,)}), 1.0, lambda doing, error: None)
    receiver.begin()
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        receiver.take(0, Op(Kind.F, 1, 0))


def test_a_channel_that_nothing_can_take_over_from_ends_the_step() -> None:
    data: Any = Scripted(ConnectionLost("the card is gone"))
    receiver = Receiver(wire_of(1), Ends(data, data), BoundaryMeta({(0, 0): (KIND,)}), 1.0)
    receiver.begin()
    with pytest.raises(TransferFailed, match="the connection is lost; rank 0 has ended or failed"):
        receiver.take(0, Op(Kind.F, 1, 0))


class Grown(nn.Linear):
    """A layer with a table that never changes, a counter that does, and gradients in two places."""

    weight: Any
    bias: Any
    table: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("table", torch.ones(2))
        self.register_buffer("count", torch.zeros(1))
        self.weight.main_grad = torch.ones(2, 2)

    def step(self) -> None:
        self.count += torch.rand(1)
        torch.autograd.backward(self(torch.randn(1, 2)).sum())
        self.weight.main_grad += torch.rand(2, 2)


def test_what_a_step_changes_is_put_back() -> None:
    """Gradients that were there, in the tensors that they were in; those that were not; counters and random numbers."""
    layer = Grown()
    start = StepStart([layer], ReplicaHooks(), torch.device("cpu"))
    for put_aside in (False, True):  # nothing there but what is None; and both
        layer.bias.grad = torch.ones(2) if put_aside else None
        layer.weight.grad = None
        start.keep()
        before, gradient = torch.get_rng_state(), layer.bias.grad
        kept = [layer.count.clone(), layer.weight.main_grad.clone(), torch.ones(2)]
        layer.step()
        once = [layer.count.clone(), layer.weight.grad, layer.bias.grad.clone()]
        start.put_back()
        assert layer.weight.grad is None and layer.bias.grad is gradient
        assert [torch.equal(one, other) for one, other in zip(kept, [layer.count, layer.weight.main_grad], strict=False)] == [
            True
        ] * 2
        assert torch.equal(torch.get_rng_state(), before)
        layer.step()
        again = [layer.count, layer.weight.grad, layer.bias.grad]
        assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
        start.let_go()
    assert {name for _, name in start._changing or ()} == {"count"}, "tables are copied once"
    start.keep()
    layer.table += 1
    with pytest.raises(Unsupported, match="the buffer 'table' of a Grown has changed"):
        start.put_back()


class Young(nn.Linear):
    """A layer that makes a buffer and a place for gradients when it first needs them."""

    weight: Any
    mean: torch.Tensor | None
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("mean", None)

    def step(self) -> None:
        self.mean = torch.ones(2) if self.mean is None else self.mean / 2
        if not hasattr(self, "count"):
            self.register_buffer("count", torch.zeros(()))
        self.count += 1
        if not hasattr(self.weight, "main_grad"):
            self.weight.main_grad = torch.zeros(2, 2)
        self.weight.main_grad += 1


def test_what_a_step_has_made_is_taken_away() -> None:
    layer = Young()
    start = StepStart([layer], ReplicaHooks(), torch.device("cpu"))
    for step in range(1, 3):
        start.keep()
        layer.step()
        start.put_back()
        layer.step()
        start.let_go()
        assert layer.mean is not None and layer.mean.tolist() == [1 / step] * 2
        assert layer.count.item() == step and layer.weight.main_grad[0, 0] == step


@pytest.mark.parametrize("what", ["a weight", "the batch"])
def test_what_should_not_change(what: str) -> None:
    """An optimizer that runs in a hook has updated the weights already; a batch that is changed in place is another."""
    layer, mask = nn.Linear(2, 2), torch.ones(4)
    batch = [(torch.ones(3), {"mask": mask})]
    start = StepStart([layer], ReplicaHooks(), torch.device("cpu"))
    with torch.inference_mode():
        uncounted = torch.ones(5)
    start.keep((None, batch, uncounted, "text"))
    with torch.no_grad():
        (layer.bias if what == "a weight" else mask).add_(1)
    with pytest.raises(Unsupported, match=f"{what} of shape .* has changed in place"):
        start.put_back()

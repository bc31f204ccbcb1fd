"""When the first channel fails, on whichever end and at whatever point, the second carries on, exactly once, with one warning."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transport_runs
from fake_device import FakeLane
from faults import Faults
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import plan_of
from problems import make_problem

from schedc.runtime.common.failure import ConnectionLost, NoAnswer
from schedc.runtime.common.header import TensorKind
from schedc.runtime.transports.base import Ends
from schedc.runtime.transports.fallback import Fallback
from schedc.runtime.transports.words import Says, Word, Words
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rank_processes import Ranks

NONE = Faults()
COUNT = 8
KIND = TensorKind(torch.float32, (1,))


def script(order: list[int], ahead: int) -> list[list[tuple[str, int, float]]]:
    """The sender sends all and then waits; the receiver posts so many ahead, and takes in an order."""
    sends = [("send", number, 0.0) for number in range(COUNT)] + [("done", number, 0.0) for number in range(COUNT)]
    receives: list[tuple[str, int, float]] = []
    posted = 0
    for place, number in enumerate(order):
        while posted < COUNT and (posted <= number or posted < place + ahead):
            receives.append(("post", posted, 0.0))
            posted += 1
        receives.append(("take", number, 0.0))
    return [sends, receives]


TRANSFERS = [(number % 3, torch.float32, (5, number + 1)) for number in range(COUNT)]


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    send=st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from(["raise", "late", "lost"]), max_size=2),
    receive=st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from(["raise", "late", "lost"]), max_size=2),
    order=st.permutations(range(COUNT)),
    ahead=st.integers(1, COUNT),
)
def test_every_transfer_is_handed_over_once(two: Ranks, send: Any, receive: Any, order: list[int], ahead: int) -> None:
    """With failures on both ends at once, before and after the tensor has come, in any order of takes."""
    faults = [Faults(send=send), Faults(receive=receive)]
    results = two.run(transport_runs.exchange, "fallback", TRANSFERS, script(order, ahead), 2, faults)
    assert all(isinstance(result, list) for result in results), results
    for wrong, warned in results:
        assert wrong == []
        assert warned <= 1
    if receive:
        assert results[1] == [[], 1]


@pytest.mark.slow
def test_a_transfer_that_is_lost_without_a_word(two: Ranks) -> None:
    """The sender believes it sent; the receiver's patience ends first, and the wait is still not over."""
    results = two.run(
        transport_runs.exchange, "fallback", TRANSFERS, script(list(range(COUNT)), 3), 2, [Faults(send={4: "lose"}), NONE], 4.0
    )
    assert results == [[[], 1], [[], 1]]


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_channel_that_does_not_connect(two: Ranks, culprit: int) -> None:
    faults = [Faults(connect=rank == culprit) for rank in range(2)]
    results = two.run(transport_runs.exchange, "fallback", TRANSFERS, script(list(range(COUNT)), 3), 2, faults)
    assert results == [[[], 1], [[], 1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "culprit"),
    [
        (Faults(receive={2: "lost"}), 1),
        (Faults(send={2: "raise"}), 2),
        (Faults(receive={5: "late"}), 2),
    ],
)
def test_a_step_in_which_a_channel_fails(four: Ranks, faults: Faults, culprit: int) -> None:
    """The step ends with equal gradients; the two ranks warn once each; theirs is the delegate from then on, others' is not."""
    problem = make_problem(4, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    pair = frozenset({(1, 2), (2, 1)})
    failing = Faults(send=faults.send, receive=faults.receive, wires=pair)
    results = four.run(transport_runs.train_on_failing, plan, [failing if rank == culprit else NONE for rank in range(4)])
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        assert result["error"] < 1e-9
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-12)
        last = {way: result["by_step"][-1].get(way, 0) - result["by_step"][-2].get(way, 0) for way in ("gloo", "delegate")}
        if rank in (1, 2):
            assert len(result["told"]) == 1
            assert "gloo failed (" in result["told"][0] and "; the delegate carries" in result["told"][0]
            assert last == {"gloo": 2 * 4, "delegate": 2 * 4}, "one neighbour by each"
        else:
            assert result["told"] == []
            assert last == {"gloo": 2 * 4, "delegate": 0}


class Scripted:
    """A transport whose receives give a number, and do something first."""

    def __init__(self, value: float, before: Callable[[], None]) -> None:
        self.value = value
        self.before = before

    def receive(self, kind: TensorKind, tag: int) -> Scripted:
        return self

    def wait(self, timeout_s: float) -> torch.Tensor:
        self.before()
        return torch.full((1,), self.value)


class OneLine:
    """Groups of rank 1, of two, with one line between them."""

    rank = 1
    timeout_s = 20.0

    def __init__(self, lane: FakeLane) -> None:
        self.lane = lane

    def make(self, ranks: Sequence[int]) -> FakeLane:
        return self.lane


class Line:
    """The receiving end of a wire between two scripted channels, and what the other end says and hears."""

    def __init__(self, before: Callable[[], None]) -> None:
        theirs, ours = FakeLane.pair()
        self.heard: list[Says] = []
        self.all_heard = threading.Event()
        line: Any = theirs
        self.other = Words(line, "other")
        self.other.listen(self._hear, lambda _: None)
        self.other.say(Word(Says.READY))
        self.channels: tuple[Any, Any] = Scripted(1.0, before), Scripted(2.0, lambda: None)
        ways: list[Any] = [lambda wire, groups, channel=channel: Ends(channel, channel) for channel in self.channels]
        groups: Any = OneLine(ours)
        self.ends: Any = Fallback(*ways, names=("first", "second"))(transport_runs.WIRE, groups)

    def _hear(self, word: Word) -> None:
        self.heard.append(word.says)
        if word.says in (Says.CHANGED, Says.TAKEN):
            self.all_heard.set()

    def close(self) -> None:
        self.ends.close()
        self.other.close()


def test_a_channel_that_is_given_up_while_its_tensor_comes() -> None:
    """The other end may send it again from then on, so it must not be taken from the first."""
    line = Line(lambda: line.ends.data.change("the card is gone"))
    incoming = line.ends.data.receive(KIND, 0)
    line.other.say(Word(Says.SENT))
    with pytest.warns(RuntimeWarning, match="first failed \\(the card is gone\\); second carries"):
        assert incoming.wait(20.0).item() == 2.0
    assert line.all_heard.wait(20.0)
    assert line.heard == [Says.READY, Says.CHANGED], "and never TAKEN"
    line.close()


def test_a_peer_that_is_late_is_no_channel_that_fails() -> None:
    """It may write a checkpoint between two steps: until it has sent, nothing is asked of the channel, however long that takes."""
    asked, sent = threading.Event(), threading.Event()

    def came() -> None:
        asked.set()
        if not sent.is_set():
            raise NoAnswer("nothing in half of the time")

    line = Line(came)
    incoming = line.ends.data.receive(KIND, 0)

    def send() -> None:
        sent.set()
        line.other.say(Word(Says.SENT))

    threading.Timer(0.2, send).start()
    assert incoming.wait(20.0).item() == 1.0
    assert asked.is_set() and line.all_heard.wait(20.0)
    assert line.heard == [Says.READY, Says.TAKEN], "and never CHANGED"
    line.close()


def test_a_peer_that_is_too_late() -> None:
    """Nor is it the channel then: the step fails, and says that nothing was sent."""
    line = Line(lambda: None)
    with pytest.raises(NoAnswer, match="nothing was sent in"):
        line.ends.data.receive(KIND, 0).wait(0.05)
    line.other.close()
    with pytest.raises(ConnectionLost, match="closed") as error:
        line.ends.data.receive(KIND, 1).wait(20.0)
    assert error.value.__cause__ is not None
    line.close()


def test_what_the_thread_of_the_words_cannot_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other end has changed, and this rank's device is broken: the step gets that, at once and as what it is."""
    line = Line(lambda: None)

    def broken(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    incoming = line.ends.data.receive(KIND, 0)
    monkeypatch.setattr(line.channels[1], "receive", broken)
    line.other.say(Word(Says.CHANGED))
    with pytest.raises(torch.AcceleratorError, match="device-side assert"):
        incoming.wait(20.0)
    line.close()

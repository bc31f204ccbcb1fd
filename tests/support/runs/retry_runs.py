"""What the rank processes of the tests of repeated steps run: training on channels that fail, beside the same on sound ones."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from runs import pipeline_runs
from runs.faults import Faults, faulty
from runs.harness import TOKENS, WIDTH, Layer, Run, load, loss_fn, make_batch, make_stages, piece_of
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.session import loading
from schedc.runtime.transports.base import Ends, P2PChannel
from schedc.runtime.transports.delegate import connect_delegate
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.ir.plan import Plan
    from schedc.runtime.common.boundary import TensorMeta
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.program import Wire


def gloo_apart(wire: Wire, groups: Groups) -> Ends:
    """gloo as NCCL is connected: what carries the tensors may fail, and what the ranks tell each other still arrives."""
    data, control = connect_gloo(wire, groups), connect_gloo(wire, groups)

    def close() -> None:
        data.close()
        control.close()

    return Ends(data.data, control.control, give_up=data.close, close=close)


class _Counted:
    """Counts the transfers that begin here."""

    def __init__(self, inner: Any, counts: Counter[str], name: str) -> None:
        self._inner = inner
        self._counts = counts
        self._name = name

    def send(self, tensor: torch.Tensor, tag: int) -> Any:
        self._counts[self._name] += 1
        return self._inner.send(tensor, tag)

    def receive(self, kind: TensorMeta, tag: int) -> Any:
        self._counts[self._name] += 1
        return self._inner.receive(kind, tag)


@contextmanager
def on_failing(faults: Sequence[Faults], *, delegate: bool = True, counts: Counter[str] | None = None) -> Iterator[None]:
    """In here all pairs of ranks have channels over gloo that fail so, one after the other, and then the delegate."""
    counted = Counter[str]() if counts is None else counts

    def connect(name: str, inner: Any, wire: Wire, groups: Groups) -> Ends:
        ends: Ends = inner(wire, groups)
        return ends._replace(data=_Counted(ends.data, counted, name))

    channels = [P2PChannel("gloo", partial(connect, "gloo", faulty(gloo_apart, own))) for own in faults]
    if delegate:
        channels.append(P2PChannel("the delegate", partial(connect, "delegate", connect_delegate)))
    with patch.object(loading, "connection", lambda *_: lambda source, destination: channels):
        yield


class Moody(nn.Module):
    """A layer with all that a step changes: random numbers, statistics that are written, and a counter that is replaced."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        y: torch.Tensor = self.dropout(self.norm(self.inner(x).transpose(1, 2)).transpose(1, 2))
        return y


class Options(NamedTuple):
    """How `compare` trains."""

    steps: int = 4
    timeout_s: float = 60.0
    accumulate: bool = False
    """Whether gradients add up over two steps."""
    swap_to: Plan | None = None
    """A plan to move to; all ranks call `swap` before step 1."""
    late_s: float = 0.0
    """How long rank 0 sleeps before step 2."""
    recovery_s: float = 0.0
    delegate: bool = True


def compare(rank: int, plan: Plan, faults: Sequence[Sequence[Faults]], options: Options) -> dict[str, Any]:
    """Train on sound channels, then on failing ones.

    Args:
        rank: which process.
        plan: what is run.
        faults: by process, of its channels over gloo, one after the other.
        options: how.

    Returns:
        Whether losses, gradients, weights, buffers and random numbers of every step are equal bit by bit; the warnings; how
        many transfers had begun by which channel after each step; the steps that a Recorder has kept; the moves to another plan.
    """
    sound = _train(rank, plan, [Faults()], options._replace(timeout_s=60.0))
    failing = _train(rank, plan, faults[rank], options)
    pairs = list(zip(sound["states"], failing.pop("states"), strict=True))
    different = [
        step
        for step, (one, other) in enumerate(pairs)
        if len(one) != len(other) or not all(torch.equal(x, y) for x, y in zip(one, other, strict=True))
    ]
    return failing | {"different": different, "told_when_sound": sound["told"]}


def _train(rank: int, plan: Plan, faults: Sequence[Faults], options: Options) -> dict[str, Any]:
    """The steps; of each, what there is after it."""
    run = Run(plan)
    for stage, module in run.stages.items():
        layers = list(module.children())
        torch.manual_seed(100 + piece_of(plan, stage))
        layers.insert(1 if isinstance(layers[0], nn.Embedding) else 0, Moody().double())
        run.stages[stage] = nn.Sequential(*layers)
    torch.manual_seed(100 + rank)
    states: list[list[torch.Tensor]] = []
    counts = Counter[str]()
    by_step: list[dict[str, int]] = []
    recorder = Recorder(options.steps, skip=0)
    swapped: list[Any] = []
    with on_failing(faults, delegate=options.delegate, counts=counts), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with run.load(timeout_s=options.timeout_s, recovery_timeout_s=options.recovery_s, observe=recorder) as pipe:
            for step in range(options.steps):
                if not options.accumulate or step % 2 == 0:
                    run.clear()
                if step == 1 and options.swap_to is not None:
                    swapped.append(pipe.swap(options.swap_to))
                if step == 2 and rank == 0:
                    time.sleep(options.late_s)
                pipe.step(*make_batch(plan, 10 * step + run.pipeline))
                gradients = [weight.grad.clone() for weight in run.weights if weight.grad is not None]
                run.descend()
                weights = [weight.detach().clone() for weight in run.weights]
                buffers = [buffer.clone() for module in run.stages.values() for buffer in module.buffers()]
                states.append([pipe.losses, *gradients, *weights, *buffers, torch.get_rng_state()])
                by_step.append(dict(counts))
            recorded = [kept.step for kept in recorder.record(run.rank).steps]
    return {
        "states": states,
        "told": [str(warning.message) for warning in told],
        "by_step": by_step,
        "recorded": recorded,
        "swapped": [(swap.state, swap.step) for swap in swapped],
    }


def fail(rank: int, *given: Any) -> list[str]:
    """`pipeline_runs.fail` where the delegate may take over."""
    with on_failing([Faults()]):
        return pipeline_runs.fail(rank, *given)


class Sudden(nn.Module):
    """A stage that changes a buffer in step 1 only, and with it what it computes."""

    bias: torch.Tensor

    def __init__(self, inner: nn.Module, forwards: int) -> None:
        super().__init__()
        self.inner = inner
        self.forwards = forwards
        self.ran = 0
        self.register_buffer("bias", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ran += 1
        if self.ran > self.forwards:
            self.bias += 1.0
        y: torch.Tensor = self.inner(x) + self.bias
        return y


def change_suddenly(rank: int, plan: Plan, faults: Sequence[Faults]) -> str:
    """Two steps, in the second of which a channel fails, and rank 1 changes a buffer that it has not changed before."""
    stages = make_stages(plan, rank)
    if rank == 1:
        stages = {stage: Sudden(module, plan.problem.microbatches) for stage, module in stages.items()}
    with on_failing([faults[rank]]), load(plan, stages, timeout_s=20) as pipe:
        for step in range(2):
            pipe.step(*make_batch(plan, step))
    return "went well"


class OwnLoss(nn.Module):
    """A loss function with a weight, whose gradient adds up beside the stages', and a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return loss_fn(logits * self.scale, targets)

    def method(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The same as a method."""
        result: torch.Tensor = self(logits, targets)
        return result


def lose_with_weights(rank: int, plan: Plan, faults: Sequence[Faults], method: bool) -> list[tuple[float, float]]:
    """Two steps with a loss function that has a weight: after each, the weight's gradient and the buffer."""
    own = OwnLoss()
    found = []
    with (
        warnings.catch_warnings(),
        on_failing([faults[rank]]),
        load(plan, make_stages(plan, rank), loss_fn=own.method if method else own, timeout_s=20) as pipe,
    ):
        warnings.simplefilter("ignore")
        for step in range(2):
            pipe.step(*make_batch(plan, step))
            found.append((0.0 if own.scale.grad is None else own.scale.grad.item(), own.seen.item()))
    return found


def change_the_batch(rank: int, plan: Plan, faults: Sequence[Faults], what: str) -> str:
    """One step that changes the inputs or the targets in place, in which a channel fails: each run of it finds another batch."""
    stages = make_stages(plan, rank)
    if what == "inputs" and 0 in stages:
        stages[0].register_forward_pre_hook(lambda module, inputs: inputs[0].add_(1).remainder_(TOKENS))

    def changing(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_fn(logits, targets.add_(1).remainder_(TOKENS) if what == "targets" else targets)

    with on_failing([faults[rank]]), load(plan, stages, loss_fn=changing, timeout_s=20) as pipe:
        pipe.step(*([piece.clone() for piece in one.chunk(plan.problem.microbatches)] for one in make_batch(plan, 0)))
    return "went well"


def raise_on_zeros(rank: int, plan: Plan, faults: Sequence[Faults]) -> str:
    """A step in which a channel fails and rank 1 raises on what comes in place of its tensors."""
    stages = make_stages(plan, rank)

    def refuse_zeros(module: nn.Module, inputs: Any) -> None:
        if not inputs[0].any():
            raise ValueError("nothing to normalize by")

    for stage in stages.values() if rank == 1 else ():
        stage.register_forward_pre_hook(refuse_zeros)
    with on_failing([faults[rank]]), load(plan, stages, timeout_s=20) as pipe:
        pipe.step(*make_batch(plan, 0))
    return "went well"

"""What delays cost on a small real task, beside what is published, and the number of stages that the theory picks.

A transformer of six blocks learns the characters of this repository's documentation in one process, which applies the delays of a
pipeline: at update k stage s computes forward and backward with the weights of update k − its delay. The blocks are six stages.

1. Loss after the updates for AdamW, SGD and Muon: without delay; delays 5..0 (stashed weights under 1F1B); 1 everywhere (2BW);
   5 everywhere; for AdamW and Muon also with weights predicted as W − τ·lr·ΔW, from the last update. Then whether the order of the
   published findings (marin-community/marin issue 6431, arXiv 2606.30634) comes out, in loss and in the updates that a run without
   delay needs for the same loss. The values need not: the task is small, and one seed is one sample.
2. Time to a loss by the number of stages, for SGD with stashed weights, on six workers whose replicas pay for an all-reduce:
   updates that the runs needed × W of DynPipe's planner, beside the theory (equation 3), whose error is chosen such that it says
   for one stage what the run without delay needed. Its constants are measured in some steps on one batch.

Run it as `python benchmarks/asynchronous/delays.py [--updates 600] [--seed 0]`; four minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.dynpipe import published_staleness, replicated_stages

from schedc.formats.convergence_file import read_convergence
from schedc.ir import Device, Layer, MessageCost, Network, Workload
from schedc.runtime.measure.convergence import ConvergenceMeter
from schedc.study.loss.convergence import estimated_constants, staleness, updates_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
BLOCKS, WIDTH, HEADS, CONTEXT, BATCH = 6, 32, 4, 32, 12
RATES = {"adamw": 1e-2, "sgd": 0.3, "muon": 0.02}
"""Of each optimizer; the best of a few without delay."""
WARM_UP = 20
"""Updates over which the rate rises."""
LAST = 50
"""Losses are means over this many updates."""
PREDICTED = ("adamw", "muon")
"""Whose weights are predicted, too."""
MODES = {
    "no delay": (0,) * BLOCKS,
    "stages' own, 5..0": tuple(range(BLOCKS - 1, -1, -1)),
    "1 everywhere": (1,) * BLOCKS,
    "5 everywhere": (BLOCKS - 1,) * BLOCKS,
}


class Block(nn.Module):
    """Attention and a feed-forward layer, norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a batch of sequences."""
        query, key, value = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3 * HEADS, -1).transpose(1, 2).chunk(3, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        made: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return made


class First(nn.Module):
    """Characters and their places, and the first block."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.place, self.block = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a batch of sequences of characters."""
        made: torch.Tensor = self.block(self.embedding(x) + self.place.weight)
        return made


class Task:
    """A text, its batches, and a model."""

    def __init__(self, seed: int, blocks: int = BLOCKS, batch: int = BATCH) -> None:
        paths = [ROOT / "LICENSE", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
        known = sorted(set(text))
        codes = {character: code for code, character in enumerate(known)}
        self.text = torch.tensor([codes[character] for character in text])
        self.vocabulary, self.seed, self.blocks, self.sequences = len(known), seed, blocks, batch

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Always the same for a number."""
        generator = torch.Generator().manual_seed(1_000_000 * self.seed + number)
        begins = torch.randint(len(self.text) - CONTEXT - 1, (self.sequences,), generator=generator)
        both = torch.stack([self.text[begin : begin + CONTEXT + 1] for begin in begins.tolist()])
        return both[:, :-1], both[:, 1:]

    def stages(self) -> nn.Sequential:
        """The model, by blocks; always the same."""
        torch.manual_seed(self.seed)
        last = nn.Sequential(Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, self.vocabulary))
        return nn.Sequential(First(self.vocabulary), *(Block() for _ in range(self.blocks - 2)), last)


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Of the next character, in nats."""
    return next_character(model(batch[0]), batch[1])


def next_character(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy, in nats."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizers_of(name: str, model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon is for the matrices of blocks; AdamW for what it leaves."""
    weights = list(model.parameters())
    if name == "sgd":
        return [torch.optim.SGD(weights, lr=rate)]
    if name == "adamw":
        return [torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)]
    if name == "nadam":
        return [torch.optim.NAdam(weights, lr=rate, betas=(0.99, 0.999))]
    matrices = [
        weight for block in model.modules() if isinstance(block, Block) for weight in block.parameters() if weight.ndim == 2
    ]
    others = [weight for weight in weights if all(weight is not each for each in matrices)]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=RATES["adamw"], weight_decay=0.0),
    ]


def train(task: Task, name: str, delays: Sequence[int], updates: int, *, predict: bool = False) -> list[float]:
    """The loss of each update's batch, at the weights that its stages read."""
    model = task.stages()
    optimizers = optimizers_of(name, model, RATES[name])
    rates = [[group["lr"] for group in each.param_groups] for each in optimizers]
    of_stage = [(weight, delay) for stage, delay in zip(model, delays, strict=True) for weight in stage.parameters()]
    kept = [[weight.detach().clone()] for weight, _ in of_stage]
    losses = []
    for update in range(updates):
        newest = [weight.data for weight, _ in of_stage]
        for (weight, delay), versions in zip(of_stage, kept, strict=True):
            at = max(0, len(versions) - 1 - delay)
            read = versions[at]
            if predict and at and delay:
                read = read + delay * (read - versions[at - 1])
            weight.data = read
        loss = loss_of(model, task.batch(update))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        for (weight, _), data in zip(of_stage, newest, strict=True):
            weight.data = data
        for each, given in zip(optimizers, rates, strict=True):
            for group, rate in zip(each.param_groups, given, strict=True):
                group["lr"] = rate * min(1.0, (update + 1) / WARM_UP)
            each.step()
            each.zero_grad()
        for (weight, delay), versions in zip(of_stage, kept, strict=True):
            versions.append(weight.detach().clone())
            del versions[: -(delay + 2)]
    return losses


def reached(losses: Sequence[float], target: float, last: int = LAST) -> int | None:
    """After how many updates the mean loss of the last ones is at most the target."""
    return next((end for end in range(last, len(losses) + 1) if fmean(losses[end - last : end]) <= target), None)


class Cost:
    """What delays cost by the losses of all runs."""

    def __init__(self) -> None:
        self.losses: dict[tuple[str, str, bool], list[float]] = {}

    def above(self, name: str, mode: str, predict: bool = False) -> float:
        """The last loss less that without delay; infinite where the run diverged."""
        found = fmean(self.losses[name, mode, predict][-LAST:]) - fmean(self.losses[name, "no delay", False][-LAST:])
        return found if math.isfinite(found) else math.inf

    def times(self, name: str, mode: str, predict: bool = False) -> float:
        """How many times the updates that a run without delay needs for the last loss."""
        losses, without = self.losses[name, mode, predict], self.losses[name, "no delay", False]
        needed = reached(without, fmean(losses[-LAST:]))
        return math.inf if math.isnan(fmean(losses[-LAST:])) else len(losses) / (needed or len(losses))


def findings(cost: Callable[..., float]) -> list[tuple[str, bool]]:
    """The order of published findings, and whether it is that of these runs."""
    own, one, everywhere = list(MODES)[1:]
    orders = [
        ("1 everywhere: Muon < AdamW", ("muon", one), ("adamw", one)),
        ("5 everywhere: Muon < AdamW", ("muon", everywhere), ("adamw", everywhere)),
        ("stages' own: Muon < AdamW", ("muon", own), ("adamw", own)),
        ("stages' own: predicted Muon < Muon", ("muon", own, True), ("muon", own)),
        *((f"{name}: stages' own < 5 everywhere", (name, own), (name, everywhere)) for name in RATES),
    ]
    return [(said, cost(*less) < cost(*more)) for said, less, more in orders]


def workload() -> Workload:
    """Six layers of 12 ms and 12 M parameters on six workers, 10 GB/s between any two: the second table's machine, made up."""
    layer = Layer(
        forward_ns=(4 * 10**6,),
        backward_input_ns=(4 * 10**6,),
        backward_weight_ns=(4 * 10**6,),
        backward_ns=(8 * 10**6,),
        message_bytes=4 * 10**6,
        gradient_message_bytes=4 * 10**6,
        parameters=12 * 10**6,
    )
    network = Network(site_of_rank=(0,) * BLOCKS, within=MessageCost(latency_ns=50_000, bytes_per_second=10**10))
    return Workload(name="six", microbatches=8, layers=(layer,) * BLOCKS, devices=(Device(),) * BLOCKS, network=network)


def by_stages(stages: int) -> tuple[int, ...]:
    """The delay of each block where this many stages have stashed weights."""
    each = BLOCKS // stages
    return tuple(stages - 1 - block // each for block in range(BLOCKS))


def measured_constants(task: Task) -> tuple[Any, list[float]]:
    """The constants, and each block's share of the second moment, at the start of a run on one batch."""
    model, moments = task.stages(), [0.0] * BLOCKS
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES["sgd"])
    meter = ConvergenceMeter(model.parameters(), name="characters", steps=20, learning_rate=RATES["sgd"])
    while not meter.done:
        loss = loss_of(model, task.batch(0))
        loss.backward()  # type: ignore[no-untyped-call]
        meter.observe(loss)
        for block, stage in enumerate(model):
            moments[block] += sum(float(weight.grad.square().sum()) for weight in stage.parameters() if weight.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    with TemporaryDirectory() as directory:
        meter.write(Path(directory) / "convergence.json")
        return estimated_constants(read_convergence(Path(directory) / "convergence.json")), [
            each / sum(moments) for each in moments
        ]


def stages_table(task: Task, runs: dict[int, list[float]]) -> None:
    """Time to a loss by the number of stages: the runs', and the theory's."""
    target = fmean(runs[1][-LAST:]) + 0.1
    measured, shares = measured_constants(task)
    constants, rate = measured.constants, RATES["sgd"]
    print(f"\nsgd to a loss of {target:.3f}; L {constants.smoothness:.3g} (median {measured.smoothness.median:.3g}),", end=" ")
    print(f"ξ² {constants.second_moment:.3g}, η L {rate * constants.smoothness:.3g}, of which the theory assumes at most 1")
    without = reached(runs[1], target)
    assert without is not None
    error = 2 * constants.initial_loss / (rate * without)
    print(f"{'stages':>6} {'W':>9} {'updates':>8} {'time':>8}", end="")
    print(f"   theory: {'updates':>8} {'time':>8}  {'largest':>8}  {'as printed':>10}")
    times: dict[str, dict[int, float]] = {"runs": {}, "theory": {}}
    for stages, losses in runs.items():
        period_s = replicated_stages(workload(), stages).period_ns / 1e9
        delays = by_stages(stages)
        found = reached(losses, target)
        factors = (staleness(delays, shares), staleness(delays), published_staleness(stages))
        needed = [updates_needed(constants, learning_rate=rate, error=error, staleness_factor=each).updates for each in factors]
        for kind, updates in (("runs", found), ("theory", needed[0])):
            times[kind][stages] = math.inf if updates is None else updates * period_s
        said = ["none" if each is None else f"{each:,}" for each in needed]
        cells = f"{stages:6} {1e3 * period_s:6.1f} ms {found or 'none':>8} {times['runs'][stages]:6.2f} s"
        print(f"{cells}           {said[0]:>8} {times['theory'][stages]:6.2f} s  {said[1]:>8}  {said[2]:>10}")
    picked, best = (min(each, key=each.__getitem__) for each in (times["theory"], times["runs"]))
    more = times["runs"][picked] / times["runs"][best]
    print(f"the theory picks {picked} stages, the best by trying all is {best}: {more:.2f} times as long")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = Task(options.seed)
    cost = Cost()
    print(
        f"mean loss of the last {LAST} of {options.updates} updates, how much it is above no delay, and how many times the updates"
    )
    print("that a run without delay needs for it")
    columns = [(name, predict) for name in RATES for predict in (False, True) if not predict or name in PREDICTED]
    print(f"{'':18}" + "".join(f"{'predicted' if predict else name:>21}" for name, predict in columns))
    for mode, delays in MODES.items():
        print(f"{mode:18}", end="", flush=True)
        for name, predict in columns:
            if predict and not any(delays):
                print(f"{'':21}", end="")
                continue
            losses = train(task, name, delays, options.updates, predict=predict)
            cost.losses[name, mode, predict] = losses
            said = f"{cost.above(name, mode, predict):+6.3f} {cost.times(name, mode, predict):5.2f}" if any(delays) else ""
            print(f"{fmean(losses[-LAST:]):8.3f} {said:12}", end="", flush=True)
        print()
    print("published order, by loss and by updates")
    for (said, by_loss), (_, by_updates) in zip(findings(cost.above), findings(cost.times), strict=True):
        print(f"  {'yes' if by_loss else 'NO':4}{'yes' if by_updates else 'NO':4}{said}")
    runs = {stages: train(task, "sgd", by_stages(stages), options.updates) for stages in (2, 3)}
    runs = {1: cost.losses["sgd", "no delay", False], **runs, BLOCKS: cost.losses["sgd", "stages' own, 5..0", False]}
    stages_table(task, runs)
    print(f"{time.process_time():.0f} s of processor time", file=sys.stderr)


if __name__ == "__main__":
    main()

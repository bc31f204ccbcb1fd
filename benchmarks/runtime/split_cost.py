"""What B and W apart cost the host, beside the fused backward: stages of transformer layers, so small that only the calls count.

For a stage and microbatch, in ms of processor time of the thread that runs them, the least of all repetitions: F, B and W, or F
and BW. On a GPU it is the time that the host takes to launch all that; it must run ahead of the device. With `--before COMMIT` the
code of that commit is measured in turns with the working tree's, each in processes of its own, and the program fails if F, B and W
take more than half of what they took there at `REQUIRED_LAYERS`.

Run it as `python benchmarks/runtime/split_cost.py [--before 560e643e] [--layers 1,8,32] [--repeats 200] [--turns 3]`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from repository.exported_commit import ROOT, exported

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.runtime.stage.block import StageBlock

WIDTH = 8
REQUIRED_LAYERS, REQUIRED_SHARE = 8, 0.5
"""F, B and W of this many layers may take at most this share of what they took before."""
PHASES = {"fused F": 9, "fused BW": 10, "fused all": 11, "split F": 11, "split B": 9, "split W": 9, "split all": 11}
"""What is measured, and how wide its column is."""


class Layer(nn.Module):
    """A transformer layer as Llama has it: RMSNorm, attention, a gated MLP, no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.middle = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of one sequence."""
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        inner = self.middle(x)
        result: torch.Tensor = x + self.down(functional.silu(self.gate(inner)) * self.up(inner))
        return result


def measured(layers: int, repeats: int) -> dict[str, float]:
    """The least time of each phase, in ms."""
    from schedc.runtime.stage.block import StageBlock

    torch.set_num_threads(1)
    stage = nn.Sequential(*(Layer() for _ in range(layers)))
    x, gradient = torch.randn(1, 4, WIDTH), torch.randn(1, 4, WIDTH)
    ways: dict[str, list[tuple[str, Callable[[StageBlock], object]]]] = {
        "fused": [("BW", lambda block: block.backward((gradient,)))],
        "split": [("B", lambda block: block.backward_input((gradient,))), ("W", lambda block: block.backward_weight())],
    }
    least: dict[str, float] = {}
    for _ in range(repeats):
        for way, phases in ways.items():
            begin = time.thread_time_ns()
            block = StageBlock(stage, [x.clone().requires_grad_()], split=way == "split")
            block.take()
            times = [("F", time.thread_time_ns() - begin)]
            for phase, run in phases:
                begin = time.thread_time_ns()
                run(block)
                if phase != "W":
                    block.take()
                times.append((phase, time.thread_time_ns() - begin))
            for phase, taken_ns in [*times, ("all", sum(taken for _, taken in times))]:
                least[f"{way} {phase}"] = min(least.get(f"{way} {phase}", 1e9), taken_ns / 1e6)
    return least


def of_tree(root: Path, layers: int, repeats: int) -> dict[str, float]:
    """The same with the code of another directory."""
    command = [sys.executable, __file__, "--layers", str(layers), "--repeats", str(repeats), "--child"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(root)}, cwd=root)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main() -> None:
    """Print the table; fail if B and W apart take too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", help="a commit")
    parser.add_argument("--layers", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measured(int(arguments.layers), arguments.repeats)))
        return
    share = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT} | ({"before": exported(arguments.before, Path(folder, "before"))} if arguments.before else {})
        print("ms of the host\n" + " " * 14 + "".join(f"{phase:>{width}}" for phase, width in PHASES.items()))
        for layers in map(int, arguments.layers.split(",")):
            least: dict[str, dict[str, float]] = {name: {} for name in trees}
            for _ in range(arguments.turns):
                for name, root in trees.items():
                    for phase, taken in of_tree(root, layers, arguments.repeats).items():
                        least[name][phase] = min(least[name].get(phase, taken), taken)
            for name, own in least.items():
                print(f"{layers:>6} {name:7}" + "".join(f"{own[phase]:>{width}.2f}" for phase, width in PHASES.items()))
            if layers == REQUIRED_LAYERS and "before" in least:
                share = least["now"]["split all"] / least["before"]["split all"]
                beyond = {name: own["split all"] - own["fused all"] for name, own in least.items()}
                print(
                    f"F, B and W of {layers} layers take {share:.2f} of what they took; required: {REQUIRED_SHARE};"
                    f" what they take beyond F and BW is {beyond['now'] / beyond['before']:.2f} of what it was"
                )
    if share > REQUIRED_SHARE:
        raise SystemExit("B and W apart take too long")


if __name__ == "__main__":
    main()

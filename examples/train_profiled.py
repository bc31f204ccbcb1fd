"""Train the model that `schedc profile` measured, by a plan compiled from its profile: one process for each rank, on the CPU.

    cd examples
    schedc profile --model profile_gpt:model -o ../build/profile.json
    schedc init --profile ../build/profile.json --ranks 2 --microbatches 8 -o ../build/job.toml
    schedc compile ../build/job.toml -o ../build/plan.json
    torchrun --standalone --nproc-per-node 2 train_profiled.py --model profile_gpt:model --plan ../build/plan.json

Prints the loss of each step. Every step has the factory's microbatch, over and over, so that the loss falls fast.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist

import schedc.runtime
from schedc.errors import SchedcError
from schedc.formats.plan.plan_file import read_plan
from schedc.runtime.profiling import load_model


def main() -> None:
    """Build this rank's stages, and train them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, metavar="MODULE:FACTORY", help="as of schedc profile")
    parser.add_argument("--plan", required=True, help="the plan file")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    torch.set_num_threads(1)
    model = load_model(options.model)
    if model.loss_fn is None:
        sys.exit(f"{options.model} gives no loss_fn, which training needs")
    assert isinstance(model.targets, torch.Tensor)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plan = read_plan(options.plan)
    stages = schedc.runtime.build_stages([layer for _, layer in model.layers], plan, rank)
    optimizer = torch.optim.AdamW([weight for each in stages.values() for weight in each.parameters()], lr=1e-3)
    microbatches = plan.problem.microbatches
    with schedc.runtime.load(plan, stages=stages, loss_fn=model.loss_fn) as pipe:
        for step in range(options.steps):
            optimizer.zero_grad()
            loss = pipe.step([model.inputs] * microbatches, [model.targets] * microbatches)
            optimizer.step()
            if rank == 0:
                print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except SchedcError as error:
        sys.exit(str(error))

"""Train a small transformer from a plan: one process for each rank of the plan, on the CPU.

    schedc compile examples/train_gpt_jobs/two-sites.toml -o build/train_gpt.plan.json
    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py --plan build/train_gpt.plan.json

Any plan will do, with as many processes as it has ranks, or twice as many, or more: then several pipelines train together. The data
is a Markov chain, whose entropy the loss approaches. `--check` compares the first step with the same model without a pipeline,
gradient by gradient, in double precision.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import schedc.runtime
from schedc.errors import SchedcError
from schedc.formats.plan.plan_file import read_plan
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.clipping import clip_grad_norm_

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.session.pipe import Pipe

TOKENS = 32
LENGTH = 32
WIDTH = 64
HEADS = 4
Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets, [sample, position] each."""
SAMPLES = 4
"""Sequences per microbatch."""
TOLERANCE = 1e-9


class Embedding(nn.Module):
    """Tokens to vectors, with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[sample, position] → [sample, position, WIDTH]."""
        vectors: torch.Tensor = self.tokens(tokens) + self.positions
        return vectors


class Block(nn.Module):
    """Causal attention and an MLP, each around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[sample, position, WIDTH], in and out."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, -1))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        result: torch.Tensor = x + self.down(gelu(self.up(self.mlp_norm(x))))
        return result


def make_piece(index: int, pieces: int, blocks: int) -> nn.Sequential:
    """Piece `index` of the model, the same on every rank: its share of the blocks, the embedding first, the head last."""
    torch.manual_seed(index)
    first, last = index * blocks // pieces, (index + 1) * blocks // pieces
    layers: list[nn.Module] = [Block() for _ in range(first, last)]
    if index == 0:
        layers.insert(0, Embedding())
    if index == pieces - 1:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)]
    return nn.Sequential(*layers)


def pieces_of(plan: Plan) -> dict[int, int]:
    """The piece of each stage: its place on its path. Two stages at one place of two paths are the same piece."""
    return {stage: place for path in plan.problem.paths for place, stage in enumerate(path)}


def named_layers(plan: Plan, stages: dict[int, nn.Module], blocks: int) -> nn.Module:
    """This rank's layers by their number in the whole model, so that checkpoints do not depend on the plan."""
    named = nn.ModuleDict()
    for stage, module in stages.items():
        piece = pieces_of(plan)[stage]
        first = piece * blocks // len(plan.problem.paths[0]) + (piece > 0)  # the embedding is number 0
        named.update({str(number): layer for number, layer in enumerate(module.children(), first)})
    return named


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy of the next token."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


class Chain:
    """A Markov chain in which every token has four likely successors; the same on every rank."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        logits = torch.full((TOKENS, TOKENS), -6.0)
        for token in range(TOKENS):
            likely = torch.randperm(TOKENS, generator=self.generator)[:4]
            logits[token, likely] = torch.rand(4, generator=self.generator) * 2
        self.next = logits.softmax(-1)

    def entropy(self) -> float:
        """The least possible loss, in nats per token."""
        share = torch.full((TOKENS,), 1 / TOKENS)
        for _ in range(100):
            share = share @ self.next
        return float(-(share[:, None] * self.next * self.next.log()).sum())

    def batch(self, samples: int) -> Batch:
        """The next inputs and targets."""
        tokens = [torch.randint(TOKENS, (samples,), generator=self.generator)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(self.next[tokens[-1]], 1, generator=self.generator)[:, 0])
        text = torch.stack(tokens, dim=1)
        return text[:, :-1], text[:, 1:]


def largest_error(plan: Plan, pipe: Pipe, stages: dict[int, nn.Module], blocks: int, loss: torch.Tensor, batch: Batch) -> float:
    """The largest relative error of the loss and of this process's gradients, against the model without a pipeline."""
    piece = pieces_of(plan)
    count = len(plan.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count, blocks) for index in range(count))).double()
    expected = loss_fn(whole(batch[0]), batch[1])
    torch.autograd.backward(expected)
    same = {(stage, name): weight.grad for stage in stages for name, weight in whole[piece[stage]].named_parameters()}
    if sharded(plan):
        pairs = [(one.weight.grad, same[one.stage, one.name], slice(one.start, one.stop)) for one in pipe.shards()]
    else:
        named = ((stage, *one) for stage, module in stages.items() for one in module.named_parameters())
        pairs = [(weight.grad, same[stage, name], slice(None)) for stage, name, weight in named]
    errors = [abs(loss.item() - expected.item()) / expected.item()]
    for own, other, part in pairs:
        if own is None or other is None:
            raise SystemExit("a parameter has no gradient")
        right = other.flatten()[part]
        errors.append(float((own.flatten() - right).norm() / right.norm()))
    return max(errors)


def sharded(plan: Plan) -> bool:
    """Whether each pipeline updates its share of the weights only (ZeRO 1)."""
    return plan.problem.data_parallel is not None and plan.problem.data_parallel.zero_stage > 0


def groups_of(pipelines: int, ranks: int) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """This process's pipeline and its replicas, where there are several pipelines: process 0 is rank 0 of the first."""
    if pipelines == 1:
        return None, None
    mesh = init_device_mesh("cpu", (pipelines, ranks), mesh_dim_names=("data", "pipeline"))
    return mesh.get_group("pipeline"), mesh.get_group("data")


def main() -> None:
    """Parse, load, train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", required=True, help="the plan file")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--blocks", type=int, default=8, help="transformer blocks, spread over the plan's stages")
    parser.add_argument("--recompute", action="store_true", help="keep only the stages' inputs, and run their forwards again")
    parser.add_argument("--bf16", action="store_true", help="run the forwards under autocast")
    parser.add_argument("--check", action="store_true", help="compare the first step with the model without a pipeline")
    parser.add_argument("--save", help="a new folder for a checkpoint of the last step")
    parser.add_argument("--resume", help="a folder with a checkpoint to go on from")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = read_plan(options.plan)
    pipelines = max(1, dist.get_world_size() // plan.problem.ranks)
    pipeline, rank = divmod(dist.get_rank(), plan.problem.ranks)
    count = len(plan.problem.paths[0])
    stages: dict[int, nn.Module] = {
        stage: make_piece(piece, count, options.blocks)
        for stage, piece in pieces_of(plan).items()
        if plan.problem.stages[stage].rank == rank
    }
    if options.check:
        for module in stages.values():
            module.double()
    chain = Chain()
    losses: list[float] = []
    pipeline_group, replicas = groups_of(pipelines, plan.problem.ranks)
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss_fn,
        recompute=options.recompute,
        pipeline_group=pipeline_group,
        data_parallel_group=replicas,
    ) as pipe:
        weights = [weight for module in stages.values() for weight in module.parameters()]
        optimizer = torch.optim.AdamW([shard.weight for shard in pipe.shards()] if sharded(plan) else weights, lr=3e-3)
        layers = named_layers(plan, stages, options.blocks)
        if options.resume:
            load_checkpoint(pipe, options.resume, optimizer, model=layers, convert=True)
        for step in range(options.steps):
            batch = chain.batch(SAMPLES * plan.problem.microbatches * pipelines)
            inputs, targets = (tensor.chunk(pipelines)[pipeline] for tensor in batch)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
                loss = pipe.step(inputs, targets)
            if options.check and step == 0:
                error = largest_error(plan, pipe, stages, options.blocks, loss, batch)
                who = f"rank {rank}" if pipelines == 1 else f"rank {rank} of pipeline {pipeline}"
                line = f"{who}: the loss and all gradients are within {error:.1e} of those without a pipeline\n"
                print(line, end="", flush=True)  # in one write, or two processes' lines may become one
                if not error < TOLERANCE:
                    raise SystemExit(f"{who}: expected at most {TOLERANCE:.0e}")
            clip_grad_norm_(pipe, 1.0)
            optimizer.step()
            losses.append(loss.item())
            if dist.get_rank() == 0 and (step % 10 == 0 or step == options.steps - 1):
                print(f"step {step:3}  loss {losses[-1]:.4f}  (the data's entropy is {chain.entropy():.4f})", flush=True)
        unseen = chain.batch(SAMPLES * plan.problem.microbatches * pipelines)
        loss = pipe.evaluate(*(tensor.chunk(pipelines)[pipeline] for tensor in unseen))
        if dist.get_rank() == 0:
            print(f"unseen    loss {loss.item():.4f}", flush=True)
        if options.save:
            save_checkpoint(pipe, options.save, optimizer, model=layers)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except SchedcError as error:
        sys.exit(str(error))

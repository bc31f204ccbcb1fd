"""Predicted durations of layers beside measured ones that others have published: the ratio of each, good or bad.

The measured durations are facts, quoted here with their sources; each says model, device, microbatch, sequence and tensor parallel
size, or the table says what is assumed. With PROFILES_FOLDER, the folder with the files that they were extracted to, the quoted
numbers are first compared with these files.

Run it as `python benchmarks/architectures/measured_layers.py [PROFILES_FOLDER]`. Exit status 1: a quoted number is not the file's.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.costs.architecture import Architecture, Attention, Block, ExpertExchange, Experts, FeedForward, Setting
from schedc.costs.devices import DEVICES
from schedc.costs.layers import architecture_named, layer_of
from schedc.costs.operators.blocks import block_operators, embedding_operators, head_operators, norm, sublayer_operators

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.costs.operators.operator import Operators

COLUMNS = {
    "F": "forward_ms",
    "B": "backward_input_ms",
    "W": "backward_weight_ms",
    "BW": "backward_ms",
    "kept": "activation_bytes",
}
"""The keys of the files."""
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One layer that was measured, and its operators."""

    layer: str
    file: str = ""
    """Empty: quoted from a paper."""
    device: str
    operators: Operators
    measured: Mapping[str, float]
    """By column: milliseconds, or bytes of what F keeps."""
    element_bytes: int = 2
    times: int = 1
    """This many such layers were measured together."""
    per: int = 1
    """The file's number is that of one sequence; this many were measured together."""
    named: str = ""
    """For people, where the file's name of the layer says too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cases from one source."""

    title: str
    source: str
    notes: str
    cases: list[Case] = field(default_factory=list)


def decoder(hidden: int, heads: int, width: int, vocabulary: int, *, gated: bool = False) -> Architecture:
    """A model with one block as GPT has them, or gated as Llama has them, with as many heads of keys as of queries."""
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, input_bias=not gated, output_bias=not gated, rotary=gated
    )
    block = Block((attention, FeedForward(width=width, gated=gated, bias=not gated)))
    return Architecture(name="", hidden=hidden, vocabulary=vocabulary, blocks=(block,), norm_bias=not gated)


def block_of(architecture: Architecture, setting: Setting) -> Operators:
    """The operators of its first block."""
    return block_operators(architecture.blocks[0], architecture, setting)


def galvatron() -> Group:
    """Llama 2 7B, forward."""
    model, name = decoder(4096, 32, 11008, 32000, gated=True), "galvatron-llama2-7b"
    group = Group(
        title="Llama 2 7B, 2,048 tokens, BF16",
        source="PKU-DAIR/Hetu-Galvatron cea12ff, computation_profiling_bf16_llama2-7b_all.json (Apache-2.0)",
        notes="the device is not stated; A100 is assumed. Its other layers are embedding and head together",
    )
    layer_ms = {1: 4.396252679824831, 2: 4.295437526702879, 4: 4.124338817596435, 8: 3.9369729995727534, 12: 3.9181755065917976}
    other_ms = {1: 6.286115455627439, 4: 3.1102951049804695, 12: 2.932258224487304}
    for batch, time_ms in layer_ms.items():
        setting = Setting(sequence_length=2048, microbatch_size=batch)
        group.cases.append(
            Case(
                file=name,
                layer=f"layertype_0_bsz{batch}_seq2048",
                device="a100",
                operators=block_of(model, setting),
                measured={"F": time_ms * batch},
                per=batch,
                named=f"block, batch {batch}",
            )
        )
    for tensor, kept_mib in {1: 514.5634765625, 2: 273.28173828125, 4: 136.885498046875, 8: 68.3204345703125}.items():
        operators = block_of(model, Setting(sequence_length=2048, tensor_parallel=tensor))
        named = f"block, batch 1, tensor parallel {tensor}"
        kept = {"kept": kept_mib * MIB}
        group.cases.append(Case(file=name, layer=str(tensor), device="a100", operators=operators, measured=kept, named=named))
    for batch, time_ms in other_ms.items():
        setting = Setting(sequence_length=2048, microbatch_size=batch)
        group.cases.append(
            Case(
                file=name,
                layer=f"layertype_other_bsz{batch}_seq2048",
                device="a100",
                operators=[*embedding_operators(model, setting), *head_operators(model, setting)],
                measured={"F": time_ms * batch},
                per=batch,
                named=f"embedding and head, batch {batch}",
            )
        )
    return group


def sailor() -> Iterator[Group]:
    """GPT-like models on GH200, backward fused."""
    wide = decoder(4096, 32, 16384, 50304, gated=True)
    models = {
        "sailor-opt350m-gh200-tp1-mbs8": ("OPT-350M", decoder(1024, 16, 4096, 50304), 8, 1, 2048),
        "sailor-gptneo2.7b-gh200-tp4-mbs4": ("GPT-Neo 2.7B", decoder(2560, 32, 10240, 50257), 4, 4, 2048),
        "sailor-llama8b-gh200-tp1-mbs1": ("A model of 268.5 M parameters a block", wide, 1, 1, 8192),
    }
    of_block = ((6.988, 21.514, 2885812224), (3.206, 7.259, 977403904), (48.754, 95.833, 12348096512))
    of_head = ((14.852, 19.173, 6677553152), (0.445, 0.548, 167882752), (16.226, 35.7, 2051122176))
    for (file, (title, model, microbatch, tensor, sequence)), block, head in zip(models.items(), of_block, of_head, strict=True):
        setting = Setting(
            sequence_length=sequence, microbatch_size=microbatch, tensor_parallel=tensor, element_bytes=4, fused_attention=False
        )
        group = Group(
            title=f"{title}, tensor parallel {tensor}, {microbatch} × {sequence:,} tokens",
            source="eth-easl/sailor cf2c8e3, profiles_tmp.json (MIT)",
            notes="32-bit numbers, as the sizes of the file say, taken as TF32; scores in memory, as their size says",
        )
        for layer, operators, measured in (
            ("block2", block_of(model, setting), block),
            ("head", head_operators(model, setting), head),
        ):
            values = dict(zip(("F", "BW", "kept"), measured, strict=True))
            group.cases.append(Case(file=file, layer=layer, device="gh200", operators=operators, measured=values, element_bytes=4))
        yield group


def aicb() -> Group:
    """GPT-3 175B, compute without collectives."""
    model, setting = architecture_named("gpt3-175b"), Setting(sequence_length=2048, tensor_parallel=8)
    halves = [
        without_links([norm(model, setting), *sublayer_operators(each, model.hidden, setting)])
        for each in model.blocks[0].sublayers
    ]
    group = Group(
        title="GPT-3 175B, tensor parallel 8, 2,048 tokens, without collectives",
        source="aliyun/aicb 23eec3c, G175B-M1-C03_GPT175B_megatron_tp8_pp1_mbs1_A100.txt (Apache-2.0)",
        notes="the file's mlp is faster than the peak of A100 (6.2e11 FLOPs in 1.584 ms); B and W are halves of a backward",
    )
    attention = {"F": 2.571, "B": 2.454, "W": 2.454}
    feed_forward = {"F": 1.584, "B": 2.081, "W": 2.081}
    both = {phase: attention[phase] + feed_forward[phase] for phase in attention}
    for layer, operators, measured in (
        ("attention_norm", halves[0], attention),
        ("mlp_norm", halves[1], feed_forward),
        ("attention_norm + mlp_norm", [*halves[0], *halves[1]], both),
    ):
        group.cases.append(Case(file="aicb-gpt175b-a100-tp8", layer=layer, device="a100", operators=operators, measured=measured))
    return group


def megatron() -> Group:
    """One layer of experts on 8 H100."""
    models = {
        "mixtral": (4096, Experts(count=8, chosen=2, width=14336)),
        "deepseek": (7168, Experts(count=32, chosen=8, width=2048, shared_width=2048, router_bias=True)),
    }
    measured = {
        "deepseek_a2a_tp1ep8_bf16": (7.119169592857361, 10.482670497894286),
        "deepseek_deepep_tp1ep8_bf16": (5.681718397140503, 9.055137538909912),
        "deepseek_hybridep_tp1ep8_bf16": (5.390828824043274, 8.795001602172851),
        "mixtral_a2a_tp1ep8_bf16": (4.32688798904419, 7.684332823753357),
        "mixtral_deepep_tp1ep8_bf16": (4.635550403594971, 7.854356813430786),
        "mixtral_hybridep_tp1ep8_bf16": (4.342604804039001, 7.740782427787781),
    }
    group = Group(
        title="One layer of experts, expert parallel 8, 4,096 tokens, BF16",
        source="NVIDIA/Megatron-LM d98e8a6, moe_perf/baseline.json (BSD-3-Clause)",
        notes="a2a, deepep, hybridep: what carries the tokens; the prediction is the same, that of a plain all-to-all",
    )
    for layer, (forward_ms, backward_ms) in measured.items():
        hidden, experts = models[layer.partition("_")[0]]
        operators = sublayer_operators(experts, hidden, Setting(sequence_length=4096, expert_parallel=8))
        times = {"F": forward_ms, "BW": backward_ms}
        group.cases.append(
            Case(file="megatron-moe-layer-h100-ep8", layer=layer, device="h100", operators=operators, measured=times)
        )
    return group


def deepseek() -> Group:
    """A layer of DeepSeek-V3 on 64 H800."""
    model = architecture_named("deepseek-v3-671b")
    setting = Setting(sequence_length=4096, expert_parallel=64, node=8, expert_exchange=ExpertExchange.HIERARCHICAL)
    attention, experts = model.blocks[-1].sublayers
    operators = sublayer_operators(experts, model.hidden, setting)
    moving = ("dispatch", "all-to-all", "sort", "combine")
    inside = [operator for operator in operators if operator.name not in moving]
    first = [operator.name for operator in operators].index("experts up")
    sent, back = ([operator for operator in part if operator.name in moving] for part in (operators[:first], operators[first:]))
    group = Group(
        title="DeepSeek-V3, one layer of experts, expert parallel 64, 4,096 tokens",
        source="deepseek-ai/profile-data 4496024, train.json (licence not stated)",
        notes="measured in FP8, F and B at once, tokens sent once to a node; predicted in BF16, alone, the same",
    )
    for layer, operators, measured in (
        ("attention", [norm(model, setting), *sublayer_operators(attention, model.hidden, setting)], (4.36275, 9.34075, 2.3885)),
        ("mlp (shared and routed experts)", inside, (4.60375, 5.306, 3.5395)),
        ("dispatch (all-to-all)", sent, (6.69025, 7.48675)),
        ("combine (all-to-all)", back, (8.684, 5.76925)),
    ):
        times = dict(zip(("F", "B", "W"), measured, strict=False))
        group.cases.append(Case(file="deepseek-v3-moe-layer-h800", layer=layer, device="h800", operators=operators, measured=times))
    return group


def pipemorph() -> Group:
    """A stage of a GPT of 14 billion parameters on H800."""
    setting = Setting(sequence_length=1024, fused_attention=False)
    group = Group(
        title="GPT 14B, 46 blocks of width 5,120 in 8 stages, 1,024 tokens, FP16",
        source="wutianyuan1/PipeMorph 7ff0dc6, simu.txt and experiments/single/test.sh (licence not stated)",
        notes="whole milliseconds, rounded up; scores in memory, as the script asks for no fused attention",
    )
    operators = block_of(decoder(5120, 32, 20480, 50432), setting)
    times = {"F": 9.0, "B": 10.0, "W": 6.0}
    group.cases.append(
        Case(
            file="pipemorph-gpt2-14b-h800-stages",
            layer="stage3",
            device="h800",
            operators=operators,
            measured=times,
            times=6,
            named="6 blocks",
        )
    )
    return group


def crosspipe() -> Group:
    """A stage of 8 blocks of Llama 3 70B on GH200."""
    model, setting = architecture_named("llama3-70b"), Setting(sequence_length=4096, tensor_parallel=4)
    group = Group(
        title="8 blocks of Llama 3 70B, tensor parallel 4, 4,096 tokens, BF16",
        source="CrossPipe, 7.1 (forward) and table 5 (1F1B without delay: 0.151 s for each of 16 microbatches in 8 stages)",
        notes="the longest stage: 7 blocks with embedding or head, or 8. BW is what 1F1B leaves: 0.151 s × 16 / 23, less F",
    )
    times = {"F": 38.0, "BW": 151 * 16 / 23 - 38}
    operators = block_of(model, setting)
    group.cases.append(Case(layer="stage", device="gh200", operators=operators, measured=times, times=8, named="8 blocks"))
    return group


def without_links(operators: Operators) -> Operators:
    """Those that compute."""
    return [operator for operator in operators if not operator.forward.link_bytes]


def predicted(case: Case) -> dict[str, float]:
    """By column, of those that were measured."""
    layer, fused = (
        layer_of("", "", case.operators, DEVICES[case.device], element_bytes=case.element_bytes, split_backward=split)
        for split in (True, False)
    )
    of_phase = dict(zip(("F", "B", "W", "BW"), (layer.forward_ns, *layer.parts_ns, fused.whole_ns), strict=True))
    columns = {phase: time_ns / 1e6 for phase, time_ns in of_phase.items()} | {"kept": fused.activation_bytes or 0}
    return {column: case.times * columns[column] for column in case.measured}


def found(case: Case, column: str, folder: Path) -> float:
    """What the file of a case says."""
    content = json.loads((folder / f"{case.file}.json").read_text(encoding="utf-8"))
    if "computation" not in content:
        layers = [layer for layer in content["layers"] if layer["name"] in case.layer.split(" + ")]
        return float(sum(layer[COLUMNS[column]] for layer in layers))
    if column == "kept":
        kept_mib: float = content["memory_keys"]["layertype_0_sp"]["2048"]["tp_activation_per_bsz_dict"][case.layer]
        return kept_mib * MIB
    of_one: float = content["computation"][case.layer]
    return of_one * case.per


def cell(column: str, value: float, measured: float) -> str:
    """`predicted / measured = ratio`."""
    unit = MIB if column == "kept" else 1
    digits = 0 if column == "kept" else 2
    return f"{value / unit:.{digits}f} / {measured / unit:.{digits}f} = {value / measured:.2f}"


def print_group(group: Group, out: Console) -> tuple[list[float], list[float]]:
    """A table of the group; returns its ratios of durations, and of bytes."""
    out.print(f"{group.title}\n  {group.source}\n  {group.notes}", soft_wrap=True)
    columns = [column for column in COLUMNS if any(column in case.measured for case in group.cases)]
    table = Table(box=None, pad_edge=False)
    table.add_column("  layer")
    table.add_column("device")
    for column in columns:
        table.add_column(column, justify="right")
    of_durations: list[float] = []
    of_bytes: list[float] = []
    for case in group.cases:
        values = predicted(case)
        for column, value in values.items():
            (of_bytes if column == "kept" else of_durations).append(value / case.measured[column])
        cells = {column: cell(column, value, case.measured[column]) for column, value in values.items()}
        table.add_row(f"  {case.named or case.layer}", case.device, *(cells.get(column, "") for column in columns))
    out.print(table)
    out.print()
    return of_durations, of_bytes


def summary(ratios: list[float], what: str) -> str:
    """One line."""
    mean = exp(sum(log(ratio) for ratio in ratios) / len(ratios))
    near = sum(0.8 <= ratio <= 1.25 for ratio in ratios)
    extremes = f"least {min(ratios):.2f}, largest {max(ratios):.2f}"
    return f"{len(ratios)} ratios of {what}: geometric mean {mean:.2f}, {extremes}; {near} from 0.80 to 1.25"


def main() -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="PROFILES_FOLDER")
    folder = parser.parse_args().folder
    groups = [galvatron(), *sailor(), aicb(), megatron(), deepseek(), pipemorph(), crosspipe()]
    if folder is not None:
        quoted = [
            (case, column, value)
            for group in groups
            for case in group.cases
            if case.file
            for column, value in case.measured.items()
        ]
        others = [(*one, there) for one in quoted if abs((there := found(one[0], one[1], folder)) - one[2]) > 1e-9 * there]
        for case, column, value, there in others:
            print(f"{case.file}: {case.layer}: {column}: found {there}, quoted {value}", file=sys.stderr)
        if others:
            return 1
    out = Console(width=132, highlight=False, markup=False, emoji=False)
    out.print("predicted / measured = ratio; milliseconds, or MiB of what F keeps\n")
    ratios = [print_group(group, out) for group in groups]
    out.print(summary([ratio for of_durations, _ in ratios for ratio in of_durations], "durations"))
    out.print(summary([ratio for _, of_bytes in ratios for ratio in of_bytes], "bytes"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

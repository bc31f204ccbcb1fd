"""Layouts of plans as options of Megatron-LM, and of torchtitan and NeMo Automodel without code of ours: with each stage's modules.

A plan has the numbers of layers alone. The profile that its job names has their kinds, as `schedc costs` writes them, or names:
which layer is the embedding, a decoder block, a module for further tokens or the head. Megatron, whose stages are on the ranks in a
loop, decides the order of ops itself. torchtitan calls the modules of its language models `tok_embeddings`, `layers.i`, `norm`, and
the head `lm_head` (once `output`); Automodel as Hugging Face does: `model.embed_tokens`, `model.layers.i`, `model.norm`, `lm_head`.

Megatron-LM's `--pipeline-model-parallel-layout` is the layers of each stage as text: a letter for each layer, `|` between stages.
`x*n` is a letter n times, `(…)*n` what is in the parentheses n times; commas mean nothing. Stage i is on rank i modulo the number
of ranks.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from schedc.errors import Unsupported
from schedc.formats.profile_file import LayerEntry, ProfileFile
from schedc.io.conform import conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location
from schedc.io.tables import parse_json
from schedc.ir import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


LAYOUT_PATTERN = r"^(auto|E[tmL|()*0-9,]*)$"
"""Of texts that may be layouts, or "auto", for a schema."""
_REPEATED = re.compile(r"\((?P<content>[EtmL|*0-9]+)\)\*(?P<count>\d+)|[EtmL|](?:\*\d+)?")
_LETTER = re.compile(r"(?P<content>[EtmL|])(?:\*(?P<count>\d+))?")
_MOST = 100_000
"""Layers and stages of a layout: more than any model has, so that a wrong number takes no memory."""


class ModelLayer(StrEnum):
    """What a layer is, by Megatron's letter for it."""

    EMBEDDING = "E"
    BLOCK = "t"
    FURTHER_TOKEN = "m"
    HEAD = "L"


def format_layout(stages: Sequence[Sequence[ModelLayer]]) -> str:
    """The layout's text, equal neighbours written once."""
    counts = [[(letter, len(list(run))) for letter, run in groupby(stage)] for stage in stages]
    texts = ["".join(letter * count if count < 3 else f"{letter}*{count}" for letter, count in stage) for stage in counts]
    *before, last = texts
    runs = [(text, len(list(run))) for text, run in groupby(before)]
    return "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in runs) + last


def parse_layout(text: str) -> tuple[tuple[ModelLayer, ...], ...]:
    """The layers of each stage that a layout's text has.

    Raises:
        ValueError: it is no layout; says what is expected.
    """
    plain = _unrolled(text.replace(",", ""), _REPEATED)
    stages = tuple(tuple(ModelLayer(letter) for letter in stage) for stage in _unrolled(plain, _LETTER).split("|"))
    letters = "".join(letter for stage in stages for letter in stage)
    if not re.fullmatch("Et*m*L", letters):
        raise ValueError("expected a layout with one E first, then t, then m, and one L last")
    return stages


def partition_of(text: str) -> tuple[int, ...]:
    """How many layers each stage of a layout's text has, the embedding and the head among them.

    Raises:
        ValueError: it is no layout, or a stage has no layers.
    """
    counts = tuple(map(len, parse_layout(text)))
    if 0 in counts:
        raise ValueError(f"expected a layer in each stage, and stage {counts.index(0)} has none")
    return counts


def _unrolled(text: str, pattern: re.Pattern[str]) -> str:
    """The text with every `…*n` of the pattern written out; letters stay as they are."""
    made, at = "", 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise ValueError(f"expected a layout of Megatron-LM, of E, t, m, L and |, with (…)*n or x*n, and not {text[at]!r}")
        content, count = match["content"], match["count"] or "1"
        if content is not None and len(made) + len(content) * int(count[:9]) > _MOST:
            raise ValueError(f"expected a layout of at most {_MOST} layers and stages")
        made += match[0] if content is None else content * int(count)
        at = match.end()
    return made


_DECODER = re.compile(r"(windowed |latent )?attention( \+ (feed-forward|experts))*")
"""The kinds of blocks that are Megatron's decoder layers, as `schedc costs` writes them."""


def read_model_layers(path: Path) -> tuple[ModelLayer, ...]:
    """What the layers of a profile are, in the order of the forward.

    Raises:
        InvalidInput: the file is no profile, or a layer is none of these.
    """
    place = Location(str(path))
    entries = conform(parse_json(read_bytes(path), str(path)), ProfileFile, place).layers
    return tuple(layer for index, entry in enumerate(entries) for layer in [_layer(entry, place / "layers" / index)] * entry.repeat)


def _layer(entry: LayerEntry, place: Location) -> ModelLayer:
    named = re.match("embedding|block|further token|head", entry.name)  # without kinds: "block.3", "blocks 0 to 31"
    kind = entry.kind or (named[0] if named else "")
    if kind in ("embedding", "head"):
        return ModelLayer.EMBEDDING if kind == "embedding" else ModelLayer.HEAD
    if kind.startswith("further token"):
        return ModelLayer.FURTHER_TOKEN
    if kind == "block" or _DECODER.fullmatch(kind):
        return ModelLayer.BLOCK
    found = f"{entry.kind!r} of a layer with the name {entry.name!r}"
    raise (place / "kind").refuse(
        found, "embedding, head, block, or a kind that schedc costs writes for a block of attention and feed-forward"
    )


def layers_of_stages(plan: Plan, layers: Sequence[ModelLayer]) -> tuple[tuple[ModelLayer, ...], ...]:
    """What the layers of each stage are, along the one path of the plan.

    Raises:
        Unsupported: the plan's stages do not have these layers, or they are not an embedding, then blocks, then modules for further
            tokens, then a head.
    """
    problem = plan.problem
    if problem.paths != (tuple(range(len(problem.stages))),):
        raise Unsupported(f"{plan.name}: its stages are not one path in their order (a bidirectional placement, say)")
    if problem.edges or problem.slices:
        what = "stages are a graph" if problem.edges else "microbatches are in slices"
        raise Unsupported(f"{plan.name}: its {what}; expected a chain of whole microbatches")
    bounds = [stage.layers for stage in problem.stages if stage.layers is not None]
    if len(bounds) < len(problem.stages):
        raise Unsupported(f"{plan.name}: the plan does not know the layers of its stages; compile it from a profile.json")
    if bounds[-1][1] != len(layers):
        raise Unsupported(f"{plan.name}: the plan has {bounds[-1][1]} layers and the profile {len(layers)}; name the job's profile")
    order = (ModelLayer.EMBEDDING, ModelLayer.BLOCK, ModelLayer.FURTHER_TOKEN, ModelLayer.HEAD)
    ends = (layers.count(ModelLayer.EMBEDDING), layers.count(ModelLayer.HEAD))
    if ends != (1, 1) or sorted(layers, key=order.index) != list(layers):
        expected = "one embedding, then blocks, then modules for further tokens, then one head"
        raise Unsupported(f"{plan.name}: its layers are {''.join(layers)}, expected {expected}")
    return tuple(tuple(layers[first:last]) for first, last in bounds)


_NAMES = {
    ModelLayer.EMBEDDING: "embedding",
    ModelLayer.BLOCK: "decoder",
    ModelLayer.FURTHER_TOKEN: "mtp",
    ModelLayer.HEAD: "loss",
}
"""What layers are called in the list form."""


def megatron_options(plan: Plan, layers: Sequence[ModelLayer]) -> str:
    """The options of Megatron-LM for a plan's layout, one for each line, then the layout as a list in a comment.

    Raises:
        Unsupported: Megatron cannot express the layout; says why.
    """
    problem = plan.problem
    stages = layers_of_stages(plan, layers)
    if [stage.rank for stage in problem.stages] != [index % problem.ranks for index in range(len(stages))]:
        why = f"the placement is {problem.placement}, and Megatron's stages are on the ranks in a loop"
        raise Unsupported(f"{plan.name}: Megatron cannot express this layout: {why}; compile with placement unidirectional or loop")
    if len(stages) % problem.ranks:
        raise Unsupported(f"{plan.name}: {len(stages)} stages are not a multiple of {problem.ranks} ranks, as Megatron needs them")
    if sum(ModelLayer.FURTHER_TOKEN in stage for stage in stages) > 1:
        why = "its modules for further tokens are in several stages, and Megatron has all of them in one"
        raise Unsupported(f"{plan.name}: Megatron cannot express this layout: {why}")
    named = [[_NAMES[layer] for layer in stage] for stage in stages]
    return (
        f"--pipeline-model-parallel-size {problem.ranks}\n"
        f"--pipeline-model-parallel-layout '{format_layout(stages)}'\n"
        f"# as a list: pipeline_model_parallel_layout = {named}\n"
    )


def modules_of_stages(
    plan: Plan, layers: Sequence[ModelLayer], head: str = "lm_head", *, prefix: str = "", embedding: str = "tok_embeddings"
) -> list[list[str]]:
    """The names of the modules of each stage, where a framework has them by name and has no module for further tokens.

    `head` and `embedding` name these two modules; the prefix is of the names of all but the head.

    Raises:
        Unsupported: the plan's stages do not have these layers.
    """
    modules, blocks = [], 0
    for stage in layers_of_stages(plan, layers):
        names = []
        for layer in stage:
            if layer is ModelLayer.BLOCK:
                names.append(f"{prefix}layers.{blocks}")
                blocks += 1
            elif layer is not ModelLayer.FURTHER_TOKEN:
                names += [prefix + embedding] if layer is ModelLayer.EMBEDDING else [f"{prefix}norm", head]
        modules.append(names)
    return modules


def torchtitan_lines(plan: Plan, layers: Sequence[ModelLayer], csv_name: str, head: str = "lm_head") -> str:
    """The options of torchtitan 0.3, one for each line, then the modules as a line of Python for its configuration, in a comment.

    Torch can run the plan; `csv_name` is what `pipeline_parallel_schedule_csv` names, `head` the module of the head.

    Raises:
        Unsupported: torchtitan cannot place the stages so, or has no such layers.
    """
    from schedc.formats.torch_csv.stage_map import torchtitan_options  # here, as every job loads this module for its partition

    found = torchtitan_options(plan, csv_name, "compute_only")
    if found["options"] is None:
        raise Unsupported(f"{plan.name}: {found['why_not']}")
    if ModelLayer.FURTHER_TOKEN in layers:
        raise Unsupported(f"{plan.name}: torchtitan's models have no module for further tokens")
    modules = modules_of_stages(plan, layers, head)
    lines = (
        *found["options"],
        "--parallelism.pipeline_parallel_microbatch_size=1",
        f"--training.local_batch_size={plan.problem.microbatches}",
        "--training.disable_cuda_graphs",  # they and pipelines exclude each other
        f"# parallelism.module_fqns_per_model_part = {modules}",
        "# for larger microbatches multiply pipeline_parallel_microbatch_size and local_batch_size by the same number",
    )
    return "".join(f"{line}\n" for line in lines)


ROTARY = ("rotary_emb", "rotary_emb_compress", "swa_rotary_emb")
"""What Automodel keeps on every stage, as blocks ask the model for it (0.5; its models' `customize_pipeline_stage_modules`)."""


def automodel_lines(plan: Plan, layers: Sequence[ModelLayer], csv_name: str, head: str = "lm_head", prefix: str = "model.") -> str:
    """The keys of a recipe of NeMo Automodel 0.5 for a plan, as YAML.

    Automodel calls the hook by which a model names further modules only where it cuts the model itself. What those hooks of its
    models add is therefore here; names that a model lacks have no effect there. Torch can run the plan; `csv_name` is what
    `pp_schedule_csv` names; the prefix is of all names but the head's.

    Raises:
        Unsupported: Automodel cannot place the stages so, has no such layers, or refuses as few microbatches.
    """
    from schedc.formats.torch_csv.stage_map import placing_schedule

    ranks, microbatches = plan.problem.ranks, plan.problem.microbatches
    schedule, stages = placing_schedule(plan), layers_of_stages(plan, layers)
    if schedule is None:
        raise Unsupported(f"{plan.name}: Automodel places stages in a loop, or two for each rank in a V, and no other way")
    if any(ModelLayer.FURTHER_TOKEN in stage for stage in stages[:-1]):
        raise Unsupported(f"{plan.name}: Automodel has all modules for further tokens on the last stage, and the plan has not")
    if microbatches < ranks:
        raise Unsupported(f"{plan.name}: Automodel wants as many microbatches as ranks, and the plan has {microbatches} on {ranks}")
    modules = modules_of_stages(plan, layers, head, prefix=prefix, embedding="embed_tokens")
    modules[0].append(f"{prefix}embed_norm")
    modules[-1] += [f"{prefix}hc_head", *(["mtp"] if ModelLayer.FURTHER_TOKEN in layers else [])]
    lines = (
        "# for larger microbatches multiply local_batch_size and pp_microbatch_size by the same number",
        "step_scheduler:",
        f"  local_batch_size: {microbatches}",
        "distributed:",
        f"  pp_size: {ranks}",
        "  pipeline:",
        f"    pp_schedule: {schedule}  # for the placement alone; the order is the CSV's",
        f"    pp_schedule_csv: {json.dumps(csv_name)}",
        "    pp_microbatch_size: 1",
        "    module_fqns_per_model_part:  # names that the model lacks have no effect",
        *(f"      - {json.dumps([*names, *(prefix + name for name in ROTARY)])}" for names in modules),
    )
    return "".join(f"{line}\n" for line in lines)

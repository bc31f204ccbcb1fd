"""Layouts for Megatron-LM, torchtitan, Automodel: published ones are read and written back, and plans are expressed or refused."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, strategies as st
from inputs.jobs import write_job
from oracles.automodel import read_recipe, stage_of
from suite.command_line import schedc
from suite.example_counts import examples
from torch import nn

from schedc.formats.layouts import ModelLayer, format_layout, parse_layout, partition_of
from schedc.formats.plan.plan_file import read_plan

if TYPE_CHECKING:
    from pathlib import Path

# NVIDIA-NeMo/Megatron-Bridge 067f987d (2026-08-22), src/megatron/bridge/perf_recipes: deepseek/{gb200,gb300,h100}/deepseek_v3.py,
# deepseek/gb300/deepseek_v4.py, glm_moe_dsa/h100/glm5.py, kimi/h100/kimi_k2.py, llama/h100/llama3.py, qwen/gb300/qwen3_moe.py: the
# 15 recipes have these layouts. Beside each: pipeline ranks, and how many layers each stage has, counted by hand.
GLM = "Et|t||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|ttttmL"
PUBLISHED = {
    "Et*4|(tttt|)*14tmL": (4, [5, *[4] * 14, 3]),
    "Et*4|(t*4|)*14tmL": (4, [5, *[4] * 14, 3]),
    "Et|(tt|)*30mL": (8, [2, *[2] * 30, 2]),
    GLM: (13, [2, 1, 0, 4, 4, 4, 4, 0, 4, 4, 4, 4, 0, 4, 4, 4, 4, 0, 4, 4, 4, 4, 0, 4, 4, 6]),
    "Et|(tt|)*30L": (16, [2, *[2] * 30, 1]),
    "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL": (8, [3, *[2] * 34, 3, 2, 2, 2, 2]),
    "Et*4|(t*7|)*5t*8|tmL": (2, [5, *[7] * 5, 8, 3]),
    # Megatron-LM docs, custom pipeline model parallel layout: DeepSeek-V3 on 16 ranks with 2 chunks
    "Et*3|(tt|)*29,m|L": (16, [4, *[2] * 29, 1, 1]),
}
JOB = """\
[pipeline]
ranks = 2
microbatches = 4
[profile]
path = "profile.json"
"""
LAYERS = ("embedding", "block", "block", "block", "head")


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_layouts_are_read_and_written(text: str) -> None:
    ranks, partition = PUBLISHED[text]
    stages = parse_layout(text)
    assert [len(stage) for stage in stages] == partition
    if 0 in partition:
        with pytest.raises(ValueError, match=f"stage {partition.index(0)} has none"):
            partition_of(text)
    else:
        assert partition_of(text) == tuple(partition)
    assert len(stages) % ranks == 0
    assert parse_layout(format_layout(stages)) == stages
    assert len(format_layout(stages)) <= len(text)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[ModelLayer, ...], ...]:
    """Any layout: its layers, cut anywhere, also several times at one place."""
    letters = "E" + "t" * draw(st.integers(0, 12)) + "m" * draw(st.integers(0, 2)) + "L"
    cuts = sorted(draw(st.lists(st.integers(1, len(letters) - 1), max_size=8)))
    ends = zip([0, *cuts], [*cuts, len(letters)], strict=True)
    return tuple(tuple(map(ModelLayer, letters[first:last])) for first, last in ends)


@examples(200)
@given(stages=layouts())
def test_what_is_written_is_what_is_read(stages: tuple[tuple[ModelLayer, ...], ...]) -> None:
    assert parse_layout(format_layout(stages)) == stages
    assert parse_layout("|".join("".join(stage) for stage in stages)) == stages


@pytest.mark.parametrize(
    "text",
    [
        "",
        "E",
        "EtL ",
        "Et(t|L",
        "Et(t|)L",
        "Et((t|)*2)*2L",
        "tEL",
        "ELt",
        "EmtL",
        "EtLL",
        "Et*L",
        "Ex",
        "E(t*99999999)*99999999L",
        "Et*99999999999L",
    ],
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a layout"):
        parse_layout(text)


def made(here: Path, *, layers: tuple[str, ...] = LAYERS, values: tuple[str, ...] = (), method: str = "1f1b") -> Path:
    """The plan of a model with these kinds of layers, beside its profile."""
    entries = [{"kind": kind, "forward": "1 ms", "backward_input": "1 ms", "backward_weight": "1 ms"} for kind in layers]
    (here / "profile.json").write_text(json.dumps({"format": "schedc.profile", "version": 1, "layers": entries}))
    done = schedc("compile", write_job(here, JOB), "-o", here / "plan.json", "--method", method, "--quiet", *values)
    assert done.returncode == 0, done.stderr
    return here / "plan.json"


PARTITION = ("--set", "pipeline.partition=[3, 2]")
LOOP = ("--set", "pipeline.placement=loop", "--set", "pipeline.chunks=2", "--set", "pipeline.partition=[2, 1, 1, 1]")
WAVE = ("--set", "pipeline.placement=wave", *LOOP[2:])


@pytest.mark.parametrize(("values", "method", "layout"), [(PARTITION, "1f1b", "Ett|tL"), (LOOP, "interleaved", "Et|(t|)*2L")])
def test_megatron(tmp_path: Path, values: tuple[str, ...], method: str, layout: str) -> None:
    plan = made(tmp_path, values=values, method=method)
    done = schedc("export", "megatron", plan, "--profile", tmp_path / "profile.json", "-o", tmp_path / "out.txt")
    assert (done.returncode, done.stdout) == (0, f"written to {tmp_path}/out.txt\n")
    assert "own order" in done.stderr
    size, option, comment = (tmp_path / "out.txt").read_text().splitlines()
    assert size == "--pipeline-model-parallel-size 2"
    assert option == f"--pipeline-model-parallel-layout '{layout}'"
    names = {"E": "embedding", "t": "decoder", "L": "loss"}
    expected = [[names[letter] for letter in stage] for stage in parse_layout(layout)]
    assert ast.literal_eval(comment.partition(" = ")[2]) == expected


def test_a_job_takes_a_layout_of_megatron(tmp_path: Path) -> None:
    """As in a list, with how far it is from balance."""
    as_text = ("--set", "pipeline.placement=loop", "--set", "pipeline.chunks=2", "--set", "pipeline.partition=Et|(t|)*2L")
    read, expected = (read_plan(made(tmp_path, values=values)).problem for values in (as_text, LOOP))
    assert read == expected
    assert [stage.layers for stage in read.stages] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    far = schedc(
        "compile", tmp_path / "job.toml", "-o", tmp_path / "far.json", "--method", "1f1b", "--set", "pipeline.partition=Ettt|L"
    )
    assert "the busiest rank has 33.3% more work than with the balanced partition, [3, 2] instead of [4, 1] layers" in " ".join(
        far.stdout.split()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ettt||L", 'found "Ettt||L", expected a layer in each stage, and stage 1 has none'),
        ("balanced", 'found "balanced", expected "auto", a layout of Megatron-LM such as "Ett|(tt|)*2tL", or a list'),
        ("Ettt|t|L", "found 3 values, expected 2, one for each piece of the model"),
        ("Ett|L", "found 4 layers in all, expected the 5 of the profile"),
    ],
)
def test_a_layout_that_a_job_cannot_have(tmp_path: Path, text: str, said: str) -> None:
    made(tmp_path)
    done = schedc("compile", tmp_path / "job.toml", "-o", tmp_path / "no.json", "--set", f'pipeline.partition="{text}"')
    assert done.returncode == 2 and "pipeline.partition" in done.stderr and f": {said}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_torchtitan(tmp_path: Path) -> None:
    plan = made(tmp_path, values=PARTITION)
    done = schedc("export", "torchtitan", plan, "--profile", tmp_path / "profile.json", "-o", tmp_path / "titan.txt")
    assert (done.returncode, done.stderr) == (0, "")
    *options, comment, _ = (tmp_path / "titan.txt").read_text().splitlines()
    assert options == [
        "--parallelism.pipeline_parallel_degree=2",
        "--parallelism.pipeline_parallel_schedule=PipelineScheduleSingle",
        "--parallelism.pipeline_parallel_schedule_csv=titan.csv",
        "--parallelism.pipeline_parallel_microbatch_size=1",
        "--training.local_batch_size=4",
        "--training.disable_cuda_graphs",
    ]
    modules = [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "lm_head"]]
    assert ast.literal_eval(comment.partition(" = ")[2]) == modules
    assert schedc("lint", tmp_path / "titan.csv", "--job", write_job(tmp_path, JOB), *PARTITION).returncode == 0


def test_torchtitan_in_a_wave_with_another_head(tmp_path: Path) -> None:
    plan = made(tmp_path, values=(*WAVE, "--set", "pipeline.semantics=torch"), method="zb-v")
    command = ("export", "torchtitan", plan, "--profile", tmp_path / "profile.json", "--head", "output", "-o", tmp_path / "t.txt")
    assert schedc(*command).returncode == 0
    text = (tmp_path / "t.txt").read_text()
    assert "pipeline_parallel_schedule=ZBVZeroBubble\n" in text and "['norm', 'output']]" in text


class Decoder(nn.Module):
    """A model with the modules of one of Hugging Face's, some of which a stage may lack."""

    def __init__(self, blocks: int, further: bool) -> None:
        super().__init__()
        inner: Any = nn.Module()
        inner.embed_tokens, inner.norm, inner.rotary_emb = nn.Embedding(8, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        inner.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))
        self.model, self.lm_head, self.mtp = inner, nn.Linear(4, 8), nn.Linear(8, 8) if further else None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Blocks ask the model for the rotary embedding, as they do there."""
        inner: Any = self.model
        value = value if inner.embed_tokens is None else inner.embed_tokens(value)
        for layer in inner.layers.values() if isinstance(inner.layers, nn.ModuleDict) else inner.layers:
            value = torch.tanh(layer(inner.rotary_emb(value)))
        value = value if inner.norm is None else inner.norm(value)
        value = value if self.lm_head is None else self.lm_head(value)
        return value if self.mtp is None else self.mtp(value)


@pytest.mark.parametrize(
    ("values", "method", "on", "further"),
    [
        (PARTITION, "1f1b", [(0,), (1,)], False),
        (LOOP, "interleaved", [(0, 2), (1, 3)], False),
        ((*WAVE, "--set", "pipeline.semantics=torch"), "zb-v", [(0, 3), (1, 2)], False),
        (("--set", "pipeline.partition=[2, 4]"), "1f1b", [(0,), (1,)], True),
    ],
)
def test_automodel(tmp_path: Path, values: tuple[str, ...], method: str, on: list[tuple[int, ...]], further: bool) -> None:
    """Its stages, cut as it cuts them, are the model."""
    plan = made(tmp_path, layers=(*LAYERS[:-1], "further token", "head") if further else LAYERS, values=values, method=method)
    done = schedc("export", "automodel", plan, "--profile", tmp_path / "profile.json", "-o", tmp_path / "recipe.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    recipe = read_recipe((tmp_path / "recipe.yaml").read_text())
    assert (recipe.stages_of_rank, recipe.microbatches, recipe.csv) == (on, 4, "recipe.csv")
    assert schedc("lint", tmp_path / recipe.csv, "--job", tmp_path / "job.toml", *values).returncode == 0
    model, tokens = Decoder(3, further), torch.arange(8)
    value = tokens
    for names in recipe.modules:
        value = stage_of(model, names)(value)
    assert torch.equal(value, model(tokens))
    weights = [key for names in recipe.modules for key in stage_of(model, names).state_dict() if "rotary" not in key]
    assert sorted(weights) == sorted(key for key in model.state_dict() if "rotary" not in key)


def test_automodel_with_other_names(tmp_path: Path) -> None:
    plan, names = made(tmp_path, values=PARTITION), ("--prefix", "model.language_model.", "--head", "model.lm_head")
    out = tmp_path / "recipe.yaml"
    assert schedc("export", "automodel", plan, "--profile", tmp_path / "profile.json", "-o", out, *names).returncode == 0
    first, last = read_recipe(out.read_text()).modules
    assert first[:2] == ["model.language_model.embed_tokens", "model.language_model.layers.0"]
    assert last[1:3] == ["model.language_model.norm", "model.lm_head"]


@pytest.mark.parametrize(
    ("tool", "layers", "values", "said"),
    [
        ("megatron", LAYERS, WAVE, "Megatron cannot express this layout: the placement is wave"),
        ("megatron", (*LAYERS[:-1], "mamba"), PARTITION, "layers[4].kind: found 'mamba' of a layer with the name ''"),
        ("megatron", ("embedding", "mamba + attention", *LAYERS[2:]), PARTITION, "layers[1].kind: found 'mamba + attention'"),
        ("megatron", ("block", *LAYERS[1:]), PARTITION, "its layers are ttttL, expected one embedding"),
        ("megatron", ("embedding", "block", "further token", "further token", "head"), PARTITION, "are in several stages"),
        ("torchtitan", LAYERS, ("--set", "pipeline.placement=[0, 0, 1]", "--set", "pipeline.partition=[2, 2, 1]"), "in a loop"),
        ("torchtitan", ("embedding", "block", "block", "further token, attention", "head"), PARTITION, "further tokens"),
        ("automodel", LAYERS, ("--set", "pipeline.placement=[0, 0, 1]", "--set", "pipeline.partition=[2, 2, 1]"), "in a loop"),
        ("automodel", LAYERS, (*PARTITION, "--set", "pipeline.microbatches=1"), "as many microbatches as ranks"),
        (
            "automodel",
            ("embedding", "further token", "further token", "head"),
            ("--set", "pipeline.partition=[2, 2]"),
            "on the last",
        ),
    ],
)
def test_what_a_tool_cannot_express_is_refused_in_one_line(
    tmp_path: Path, tool: str, layers: tuple[str, ...], values: tuple[str, ...], said: str
) -> None:
    method = "greedy{n_sub=1}"
    plan = made(tmp_path, layers=layers, values=values, method=method)
    done = schedc("export", tool, plan, "--profile", tmp_path / "profile.json", "-o", tmp_path / "out.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out.txt").exists() and not (tmp_path / "out.csv").exists()


def test_layers_without_kinds_count_by_their_names(tmp_path: Path) -> None:
    """The names are those that `schedc profile` and people write."""
    plan = made(tmp_path, values=PARTITION)
    profile = json.loads((tmp_path / "profile.json").read_text())
    for entry, name in zip(profile["layers"], ("embedding", "block.0", "block3", "blocks 2 to 2", "head"), strict=True):
        del entry["kind"]
        entry["name"] = name
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    done = schedc("export", "megatron", plan, "--profile", tmp_path / "profile.json", "-o", tmp_path / "out.txt")
    assert done.returncode == 0, done.stderr
    assert "'Ett|tL'" in (tmp_path / "out.txt").read_text()


@pytest.mark.parametrize("wrong", [("-o", "."), ("-o", "t.txt", "--head", "")])
def test_torchtitan_refuses_a_folder_and_a_head_without_a_name(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    plan = made(tmp_path, values=PARTITION)
    done = schedc("export", "torchtitan", plan, "--profile", tmp_path / "profile.json", *wrong)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_another_profile_is_refused(tmp_path: Path) -> None:
    plan = made(tmp_path, values=PARTITION)
    (tmp_path / "other").mkdir()
    made(tmp_path / "other", layers=(*LAYERS[:2], *LAYERS[1:]), values=("--set", "pipeline.partition=[3, 3]"))
    done = schedc("export", "megatron", plan, "--profile", tmp_path / "other" / "profile.json", "-o", "-")
    assert done.returncode == 2 and "the plan has 5 layers and the profile 6" in done.stderr

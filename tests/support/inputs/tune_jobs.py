"""Tiny tune jobs: a Llama of a few layers on a few devices, whose candidates take milliseconds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from schedc.frontend.job_source import source_of_table
from schedc.study.tune.request import read_request

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.study.tune.request import TuneRequest

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 6,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
EXPERTS = {
    "model_type": "mixtral",
    "num_hidden_layers": 6,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "intermediate_size": 1024,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
}
TINY = """\
[model]
config = "config.json"
device = "h100"
sequence = 1024
tp = 1
[tune]
batch = 8
microbatch_sizes = [1, 2]
zero_stages = [1]
[topology]
sites = [4]
"""


def write_tiny(directory: Path, text: str = TINY) -> Path:
    """The job file, with the model's configuration beside it."""
    (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    job = directory / "tune.toml"
    job.write_text(text, encoding="utf-8")
    return job


def tiny_request(
    directory: Path, *, sites: tuple[int, ...] = (4,), config: dict[str, Any] = CONFIG, **sections: dict[str, object]
) -> TuneRequest:
    """The tiny job on these sites, of the model of this config, with the keys of the sections in place of its own."""
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    table: dict[str, dict[str, object]] = {
        "model": {"config": "config.json", "device": "h100", "sequence": 1024, "tp": 1, "ep": 1},
        "tune": {"batch": 8, "microbatch_sizes": [1, 2], "zero_stages": [1], "recompute": ["none", "full"]},
        "topology": {"sites": list(sites)},
    }
    if len(sites) > 1:
        table["topology"]["between"] = {"latency": "1 ms", "bandwidth": "10 GB/s"}
    for section, values in sections.items():
        table[section] = {**table.get(section, {}), **values}
    return read_request(source_of_table(table, directory=directory, name="tiny"))

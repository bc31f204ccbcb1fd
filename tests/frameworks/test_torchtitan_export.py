"""What docs/torchtitan.md shows: torchtitan takes the configuration function, and the exported options without code of ours."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from inputs.jobs import write_job
from suite.command_line import schedc
from suite.optional_packages import importing

with importing("torchtitan"):
    from runs.torchtitan_runs import Run, trained

if TYPE_CHECKING:
    from runs.processes import Ranks

JOB = """
pipeline = { ranks = 2, microbatches = 4, semantics = "torch" }
profile = { path = "profile.json" }
"""
CASES = {
    "two stages": (["pipeline.partition=[3, 5]"], "greedy"),
    "loop": (["pipeline.placement=loop", "pipeline.chunks=2", "pipeline.partition=[2, 3, 2, 1]"], "interleaved"),
    "wave": (["pipeline.placement=wave", "pipeline.chunks=2", "pipeline.partition=[1, 3, 2, 2]"], "zb-v"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_exported_trains_as_the_plan_does(two: Ranks, tmp_path: Path, case: str) -> None:
    settings, method = CASES[case]
    kinds = ("embedding", *["block"] * 6, "head")
    layers = [{"kind": kind, "forward": "2 ms", "backward_input": "2 ms", "backward_weight": "1 ms"} for kind in kinds]
    (tmp_path / "profile.json").write_text(json.dumps({"format": "schedc.profile", "version": 1, "layers": layers}))
    values = [word for setting in settings for word in ("--set", setting)]
    plan = tmp_path / "plan.json"
    done = schedc("compile", write_job(tmp_path, JOB), "-o", plan, "--method", method, "--quiet", *values)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "titan.txt"
    done = schedc("export", "torchtitan", plan, "--profile", tmp_path / "profile.json", "-o", out)
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    arguments = [line.replace("=titan.csv", f"={tmp_path}/titan.csv") for line in lines if not line.startswith("#")]
    (modules,) = [ast.literal_eval(line.partition(" = ")[2]) for line in lines if "module_fqns_per_model_part" in line]

    exported = Run(steps=3, arguments=tuple(arguments), options={"parallelism.module_fqns_per_model_part": modules})
    own, ours = [trained(two, run) for run in (exported, Run(steps=3, plan=str(plan)))]
    assert own[0] == pytest.approx(ours[0], rel=1e-6)
    assert own[1] == pytest.approx(ours[1], rel=1e-5)
    assert own[0][0] == ours[0][0]


def test_torchtitan_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "torchtitan.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# my_job/config_registry.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_job").mkdir()
    (tmp_path / "my_job" / "__init__.py").touch()
    (tmp_path / "my_job" / "config_registry.py").write_text(code)
    (command,) = re.findall(r"torchrun [^`]*?-m torchtitan.train ([^`]*?)\n```", page)
    program = (
        "import sys; from torchtitan.config import ConfigManager; found = ConfigManager().parse_args(sys.argv[1:]);"
        " print(found.model_spec.pipelining_fn.__module__, found.training.local_batch_size)"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", program, *command.replace("\\\n", " ").split()]
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(arguments, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["schedc.runtime.frameworks.torchtitan", "16"]

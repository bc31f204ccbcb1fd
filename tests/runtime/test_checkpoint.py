"""Checkpoints saved under one plan and loaded under another: training goes on as if nothing had happened."""

from __future__ import annotations

import re
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.few_plans import made_by
from runs import checkpoint_runs
from torch import arange, equal, ones
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from schedc.runtime.training.beside import GatedFiles
from schedc.runtime.training.checkpoint import last_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks


UNLIKE = {
    "none": "/new: some processes were given no optimizer (None), others one; give all theirs, or [] where a rank trains nothing",
    "apart": "/new: job={'loader': …} has not the same state on all processes, and is saved once; give each its own name",
    "job": "/3: found no job.loader; expected a checkpoint of the same model, optimizer and job",
    "empty": "rank 0: found an empty list of optimizers and weights that are trained; give their optimizer",
}
CUT_SHORT = {
    ".metadata": r"/\.metadata: found no metadata of a checkpoint, as of a copy that was cut short: ",
    "__0_0.distcp": r"/__0_0\.distcp: found \d+ bytes, expected \d+ bytes or more",
}


@pytest.mark.slow
def test_training_goes_on_under_other_plans(four: Ranks, tmp_path: Path) -> None:
    """Two ranks twice, four ranks, both paths of a bidirectional placement, and two ranks again, with other layers on each."""
    plans = [
        made_by("1f1b", 2, counts=[2, 4]),
        made_by("zb-h1", 4, counts=[1, 2, 2, 1]),
        made_by("chimera", 4, counts=[2, 1, 1, 2], placement="bidirectional"),
        made_by("zb-v", 2, counts=[1, 1, 3, 1], placement="wave", chunks=2),
    ]
    for error in four.run(checkpoint_runs.trained, plans, str(tmp_path), limit_s=200):
        assert isinstance(error, float), error
        assert error < 1e-9
    path = str(tmp_path / "3")
    fitting = made_by("1f1b", 2, counts=[3, 3])
    loaded = four.run(checkpoint_runs.refused, fitting, "", path)
    assert all(said.startswith("loaded") for said in loaded)
    sharded = made_by("1f1b", 2, counts=[3, 3], zero=1)
    assert four.run(checkpoint_runs.refused, sharded, "", path) == loaded == loaded[:2] * 2
    for said in four.run(checkpoint_runs.refused, fitting, "", str(tmp_path)):
        assert said.endswith("found no .metadata, expected a folder that save_checkpoint has written")
    for said in four.run(checkpoint_runs.refused, fitting, "twice", path):
        assert said.endswith("/3: found a checkpoint, expected a new folder")
    for said in four.run(checkpoint_runs.refused, fitting, "twice", f"{path}/.metadata/new"):
        assert said.endswith("/3/.metadata/new: cannot be written: Not a directory")
    unknown = "rank 0: the optimizer has a weight that is not of this rank's layers"
    assert four.run(checkpoint_runs.refused, fitting, "pipeline", path) == [
        f"CheckFailed: pipeline 1 has refused: {unknown}",
        f"CheckFailed: pipeline 1 has refused: rank 0 has refused: {unknown}",
        f"InvalidInput: {unknown}",
        f"CheckFailed: rank 0 has refused: {unknown}",
    ]
    layouts = (
        r"/3: was saved under another layout, 4 processes, 2 pipelines of 2 ranks, 4 stages \(\w{12}\); this one is 4 processes, 2"
        r" pipelines of 2 ranks, 2 stages \(\w{12}\); call load_checkpoint\(…, convert=True\)$"
    )
    for said in four.run(checkpoint_runs.refused, fitting, "layout", path):
        assert re.search(layouts, said), said
    for way, expected in UNLIKE.items():
        assert all(said.endswith(expected) for said in four.run(checkpoint_runs.refused, fitting, way, path))
    mixed = r"/new: some processes save it beside steps, others do not; give all of them the same beside=$"
    for said in four.run(checkpoint_runs.refused, fitting, "mixed", path):
        assert re.search(mixed, said), said
    for said in four.run(checkpoint_runs.refused, fitting, "shape", path):
        assert said.endswith("up.weight: found the shape [12, 6], expected [18, 6]")
        assert "\n" not in said
    for said in four.run(checkpoint_runs.refused, fitting, "float32", path):
        assert said.endswith("weight: found torch.float64, expected torch.float32, or what it holds without rounding")
    for number, (name, expected) in enumerate(CUT_SHORT.items()):
        copy = shutil.copytree(path, tmp_path / f"copy {number}")
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[: len(content) // 2])
        for said in four.run(checkpoint_runs.refused, fitting, "", str(copy)):
            assert re.search(expected, said), said
            assert "\n" not in said
    (tmp_path / "copy 1" / "__0_0.distcp").write_bytes(bytes(len(content)))
    for said in four.run(checkpoint_runs.refused, fitting, "changed", str(tmp_path / "copy 1")):
        assert "cannot be read: " in said and "\n" not in said, said
    for said in four.run(checkpoint_runs.refused, fitting, "optimizer", path):
        assert "momentum_buffer; expected a checkpoint of the same model, optimizer and job" in said
    for said in four.run(checkpoint_runs.refused, fitting, "stages", path):
        assert "stage 0 is not an nn.Sequential of the layers that the plan gives it; make stages with build_stages" in said
    for said in four.run(checkpoint_runs.refused, fitting, "model", path):
        assert said.endswith("model= lacks a weight of this rank's stages or loss function")
    for said in four.run(checkpoint_runs.refused, sharded, "optimizer", path):
        assert said.endswith("the optimizer has a weight that is not of this process's shards, pipe.shards() (ZeRO 1)"), said


@pytest.mark.slow
def test_tied_weights_and_weights_without_a_gradient(two: Ranks, tmp_path: Path) -> None:
    """On one rank, on two, on one again; AdamW has no state of a weight until a step gives it a gradient."""
    wave = made_by("zb-v", 2, counts=[2, 1, 2, 1], placement="wave", chunks=2)
    for error in two.run(checkpoint_runs.odd_weights, [wave, made_by("1f1b", 2, counts=[3, 3]), wave], str(tmp_path)):
        assert isinstance(error, float), error
        assert error < 1e-9


def test_weights_and_no_more(two: Ranks, tmp_path: Path) -> None:
    """A checkpoint without a layout may be of any; steps go on from what the job says."""
    assert two.run(checkpoint_runs.bare, made_by("1f1b", 2, counts=[2, 4]), str(tmp_path / "bare")) == [(4, True)] * 2


def test_beside_steps(two: Ranks, tmp_path: Path) -> None:
    """What is written while the next step runs has the weights of before it; what is not whole, or not written, is said."""
    for said in two.run(checkpoint_runs.beside, made_by("1f1b", 2, counts=[2, 4]), str(tmp_path)):
        assert isinstance(said, list), said
        name, same, other, names, half, at_once, of_next, of_end, last = said
        assert (name, same, last) == ("step-10", "True", "step-13")
        assert other.endswith(": another process has another checkpoint, or none, in its folder; give all the same")
        assert names.endswith(": processes were given folders of different names, of-0, of-1; give all of them the same")
        assert half.endswith("that save_checkpoint has written; one that has not been written to its end")
        assert at_once.endswith("/at-once: was not written: No space left on device"), at_once
        assert of_next.endswith("/step-11: was not written: No space left on device"), of_next
        assert of_end.endswith("/step-14: was not written: No space left on device"), of_end


@pytest.mark.parametrize(
    ("way", "zero"), [("data_parallel_group", None), ("data_parallel_group", 0), ("data_parallel_group", 1), ("swap_group", None)]
)
def test_beside_steps_of_pipelines_that_move_to_other_plans(four: Ranks, tmp_path: Path, way: str, zero: int | None) -> None:
    """Each checkpoint has what there was between the two steps, and the job resumes with the last."""
    plans = [made_by(method, 2, counts=[3, 3], zero=zero) for method in ("gpipe", "1f1b")]
    found = four.run(checkpoint_runs.beside_moves, plans, str(tmp_path), way)
    for each in found:
        assert isinstance(each, tuple), each
        assert each == (found[0][0], ["done", "done"], [True] * 4)
    assert four.run(checkpoint_runs.beside_moves, plans, str(tmp_path), way, resumes=True) == [found[0][0]] * 4


def test_files_go_in_chunks_through_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gate sees on the disk whenever it is asked is a chunk more than the time before; the checkpoint is whole."""
    monkeypatch.setattr("schedc.runtime.training.beside.CHUNK_BYTES", 1000)
    sizes, file, weights = list[int](), tmp_path / "__0_0.distcp", arange(4001.0)
    gate: Any = SimpleNamespace(wait=lambda: sizes.append(file.stat().st_size))
    files = FileSystemWriter(tmp_path)
    files.fs = GatedFiles(gate)
    with pytest.warns(UserWarning, match="assuming the intent is to save in a single process"):
        save({"weights": weights, "of": "a job"}, storage_writer=files, no_dist=True)
    chunks = -(-file.stat().st_size // 1000)
    assert chunks > 16
    assert sizes[:chunks] == [1000 * each for each in range(chunks)]
    found: dict[str, Any] = {"weights": arange(4001.0) * 0, "of": None}
    with pytest.warns(UserWarning, match="assuming the intent is to load in a single process"):
        load(found, checkpoint_id=tmp_path, no_dist=True)
    assert equal(found["weights"], weights) and found["of"] == "a job"


def test_the_last_whole_checkpoint(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    for name in ("step-3", "step-20", "notes"):
        (tmp_path / name).mkdir()
    with pytest.warns(UserWarning, match="assuming the intent is to save in a single process"):
        save({"model": {"weight": ones(3)}}, checkpoint_id=tmp_path / "step-3", no_dist=True)
    assert last_checkpoint(tmp_path) == (3, tmp_path / "step-3")
    shutil.copytree(tmp_path / "step-3", tmp_path / "step-20", dirs_exist_ok=True)
    (tmp_path / "step-20" / "__0_0.distcp").unlink()
    with pytest.warns(RuntimeWarning, match=r"not taken for a checkpoint: .*/step-20/__0_0\.distcp: found no file"):
        assert last_checkpoint(tmp_path) == (3, tmp_path / "step-3")

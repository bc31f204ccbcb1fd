"""Checkpoints by `torch.distributed.checkpoint` that know layers, not stages: saved under one plan, loaded under another.

Every process saves and loads the weights and the optimizer's state of its own layers, under the names that they have in the whole
model, `model.3.up.weight`. What several processes have (replicas) one of them writes.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from schedc.errors import CheckFailed, InvalidInput
from schedc.runtime.training.checkpoint_checks import (
    METADATA,
    check_alike,
    check_names,
    check_optimizers,
    digest_of,
    fingerprints,
    saved_in,
    take_new,
)
from schedc.runtime.training.job_state import (
    check_job_states,
    job_state,
    random_state,
    run_state,
    set_job_state,
    set_random_state,
    set_run_state,
)
from schedc.runtime.training.model_state import each_of, layers_of, model_state, set_model_state, under_all_names, weights_of

if TYPE_CHECKING:
    from torch import nn

    from schedc.runtime.session.pipe import Pipe
    from schedc.runtime.training.beside import Writing
    from schedc.runtime.training.job_state import Job
    from schedc.runtime.training.model_state import Optimizers


def save_checkpoint(
    pipe: Pipe,
    path: Path | str,
    optimizer: Optimizers | None = None,
    *,
    model: nn.Module | None = None,
    beside: bool = False,
    job: Job = MappingProxyType({}),
) -> Writing:
    """Save all that a job goes on with; all processes of the job call it together, between two steps.

    That is weights, buffers, the optimizer's state, the number of steps, the layout, each process's random states, and `job`.

    Args:
        pipe: this rank's.
        path: a new folder, which all processes see, of the same name on all of them.
        optimizer: of all this process's weights (of its shards under ZeRO 1), one or several; None, on all processes: its state is
            not saved. A rank without weights to train has an empty list.
        model: this rank's layers, under the names that they have in the whole model; None: `layers_of(pipe)`.
        beside: return as soon as all is copied, and write it while the next steps run. One checkpoint is written at a time: the
            next waits for it, as does the end of the pipe.
        job: what has a state besides, by name: `{"schedule": scheduler}`. The same name has the same state on all processes.

    Returns:
        How far it is; done, unless it is written `beside`.

    Raises:
        SchedcError: on all ranks: it cannot be saved, and why; or the one before it, written `beside`, could not be.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    from schedc.runtime.training.beside import Writer, Writing, reason
    from schedc.runtime.training.shares import SavesShares

    saved, own_job = f"the others to save {path}", job_state(job)
    given_calls = pipe.groups.everywhere((Path(path).name, beside, optimizer is None, own_job), saved)
    names, ways, nones, jobs = zip(*given_calls, strict=True)

    def check_calls() -> None:
        if len({*names}) > 1:
            different = ", ".join(sorted({*names}))
            raise InvalidInput(f"{path}: processes were given folders of different names, {different}; give all of them the same")
        if len({*ways}) > 1:
            raise InvalidInput(f"{path}: some processes save it beside steps, others do not; give all of them the same beside=")
        check_optimizers(path, nones)
        check_job_states(path, jobs)

    if pipe.beside is None:  # before torch makes a group, in which a rank that has ended or does not come is waited for
        pipe.groups.all_or_none_everywhere(check_calls, saved)
    if beside and pipe.beside is None:
        pipe.beside = Writer(pipe.groups.timeout_s)
    writer = pipe.beside
    pipe.gather()

    def checked() -> dict[str, Any]:
        if writer is not None:
            writer.settle()
        check_calls()
        if (Path(path) / METADATA).exists():
            raise InvalidInput(f"{path}: found a checkpoint, expected a new folder")
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise InvalidInput(f"{path}: cannot be written: the folder is write-protected")
        layers = layers_of(pipe) if model is None else model
        state = model_state(pipe, optimizer, layers)
        if "optim" in state:
            state["optim"].update(under_all_names(layers, state["optim"]))
        return state | {"run": run_state(pipe), "random": {str(dist.get_rank()): random_state(pipe)}, "job": own_job}

    state = pipe.groups.all_or_none_everywhere(checked, saved)
    if pipe.swap_group is not None:
        buffers = {name for name, _ in (layers_of(pipe) if model is None else model).named_buffers()}
        weights = {name: value for name, value in state["model"].items() if name not in buffers}
        given = pipe.swap_group.exchange(fingerprints(weights), saved)
        pipe.groups.all_or_none_everywhere(lambda: check_alike(path, given), saved)
    if beside:
        assert isinstance(writer, Writer)
        return writer.write(path, state, pipe.gate())
    try:
        save(state, checkpoint_id=str(path), planner=SavesShares())
    except CheckpointException as error:  # of all ranks, on all of them
        raise CheckFailed(f"{path}: was not written: {reason(error)}") from error
    return Writing(path)


def last_checkpoint(folder: Path | str) -> tuple[int, Path] | None:
    """The newest whole checkpoint of those in a folder, whose names end with their steps, as `step-1000`.

    What is half-written is no checkpoint, as a job leaves it whose processes are killed: torch writes the metadata last.

    Args:
        folder: where they are.

    Returns:
        The number that its name ends with, and its folder; None: there is none. A warning says which newer one has lost a file.
    """
    found = [(int(number[0]), each) for each in Path(folder).glob("*") if (number := re.findall(r"\d+$", each.name))]
    for step, path in sorted(found, reverse=True):
        if (path / METADATA).is_file():
            try:
                saved_in(path)
            except InvalidInput as error:
                warnings.warn(f"not taken for a checkpoint: {error}", RuntimeWarning, stacklevel=2)
            else:
                return step, path
    return None


def load_checkpoint(
    pipe: Pipe,
    path: Path | str,
    optimizer: Optimizers | None = None,
    *,
    model: nn.Module | None = None,
    convert: bool = False,
    job: Job = MappingProxyType({}),
) -> int:
    """Load what `save_checkpoint` has saved, under this plan or another of the same model; all processes call it together.

    Args:
        pipe: this rank's.
        path: the folder.
        optimizer: of all this process's weights, of the kind that was saved, one or several; None: weights and buffers alone.
            An empty list as for `save_checkpoint`.
        model: as for `save_checkpoint`.
        convert: take it from another layout as well: other layers on the ranks, other numbers of ranks or pipelines. Random states
            of processes are left alone then; what `load(seed=…)` draws is the same.
        job: as for `save_checkpoint`; all get the state of their name.

    Returns:
        How many steps the job has made.

    Raises:
        SchedcError: on all ranks, before anything is changed: the folder is no checkpoint of this model and optimizer.
    """
    loaded = f"the others to load {path}"
    digests, nones = zip(*pipe.groups.everywhere((digest_of(Path(path)), optimizer is None), loaded), strict=True)

    def checked() -> tuple[dict[str, Any], dict[str, Any], nn.Module]:
        if not (Path(path) / METADATA).is_file():
            half = "; one that has not been written to its end" if any(Path(path).glob("*.distcp")) else ""
            raise InvalidInput(f"{path}: found no {METADATA}, expected a folder that save_checkpoint has written{half}")
        if len({*digests}) > 1:
            raise InvalidInput(f"{path}: another process has another checkpoint, or none, in its folder; give all the same")
        check_optimizers(path, nones)
        layers = layers_of(pipe) if model is None else model
        if any(not one.state and any(each.grad is not None for each in weights_of(one)) for one in each_of(optimizer)):
            raise InvalidInput(f"rank {pipe.groups.rank}: the optimizer has no state yet and there are gradients; zero them first")
        return model_state(pipe, optimizer, layers), saved_in(Path(path)), layers

    state, saved, layers = pipe.groups.all_or_none_everywhere(checked, loaded)
    own_run = run_state(pipe)
    run = {key: None for key in own_run if f"run.{key}" in saved}
    _read(path, {"run": run})
    found, own_layout = run.get("layout"), own_run["layout"]

    def check_layout() -> None:
        if found not in (None, own_layout) and not convert:
            raise InvalidInput(
                f"{path}: was saved under another layout, {found}; this one is {own_layout}; call load_checkpoint(…, convert=True)"
            )

    pipe.groups.all_or_none_everywhere(check_layout, loaded)
    begins = pipe.groups.all_or_none_everywhere(lambda: take_new(path, state, saved), loaded)
    if not any(name.startswith("master.") for name in saved):
        state.pop("master", None)
    state["job"], process = dict.fromkeys(job_state(job)), str(dist.get_rank())
    if found == own_layout:
        state["random"] = {process: None}
    own = {f"{part}.{name}": value for part, values in state.items() for name, value in values.items()}
    pipe.groups.all_or_none_everywhere(lambda: check_names(path, own, saved), loaded)
    everywhere = {name for names in pipe.groups.exchange([*own], loaded) for name in names}
    if pipe.swap_group is not None:
        everywhere = {name for names in pipe.swap_group.exchange(everywhere, loaded) for name in names}
    more = sorted(name for name in saved if name.startswith("model.") and name not in everywhere)
    if more:
        raise InvalidInput(f"{path}: found {more[0]} (and {len(more) - 1} more), which no layer of the plan has")
    _read(path, state, "; weights may be half loaded: load another checkpoint")
    set_model_state(pipe, optimizer, layers, state, begins)
    set_run_state(pipe, run)
    set_job_state(job, state["job"])
    if "random" in state:
        set_random_state(pipe, state["random"][process])
    return pipe.steps.made


def _read(path: Path | str, state: dict[str, Any], otherwise: str = "") -> None:
    """Read what the state names, from a checkpoint; all processes do it together.

    Raises:
        CheckFailed: it cannot be read, and what to do `otherwise`; on all ranks.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    from schedc.runtime.training.beside import reason
    from schedc.runtime.training.shares import LoadsShares

    try:
        load(state, checkpoint_id=str(path), planner=LoadsShares())
    except CheckpointException as error:
        raise CheckFailed(f"{path}: cannot be read: {reason(error)}{otherwise}") from error

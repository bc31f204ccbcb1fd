"""What the rank processes of `benchmarks/adapting/restarts.py` run: a job with checkpoints beside it, of which a rank is killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager

from runs.exchange_runs import builder, optimizer_of
from runs.harness import load, make_batch
from runs.migration_runs import optimizers_of
from schedc.errors import InvalidInput, SchedcError
from schedc.runtime.adapt.migration import Migration, begin_migration
from schedc.runtime.adapt.state_transfer.coming import Coming
from schedc.runtime.adapt.state_transfer.leaving import Leaving
from schedc.runtime.training.beside import Writer
from schedc.runtime.training.checkpoint import last_checkpoint, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from schedc.ir.plan import Plan

CHUNK = 256
CALLS: dict[str, tuple[Any, str, str]] = {
    "connecting": (Writer, "__init__", "__init__"),
    "copy": (DefaultStager, "stage", "stage"),
    "writing": (FileSystemWriter, "write_data", "write_data"),
    "renaming": (FileSystemWriter, "finish", "finish"),
    "leaving": (Leaving, "__init__", "__init__"),
    "arriving": (Coming, "__init__", "_restore"),
}
"""What is under way from the begin of one method to the end of another: processes connect before the first checkpoint; the first
rank alone writes the metadata, and gives it its name, in `finish`; a rank copies layers that leave; the copy is on its way."""


class Kill(NamedTuple):
    """Who is killed, and when."""

    victim: int
    phase: str
    """`load`, `update`, `migration`, or one of `CALLS`."""
    number: int
    """At which time that it begins, from 1 on."""
    delay_s: float
    """After that."""


class Diary:
    """What a rank has done, in a file that outlives it; and the end of a rank that is to be killed."""

    def __init__(self, path: Path, kill: Kill | None) -> None:
        self._path = path
        self._kill = kill
        self._begun = 0
        self._under_way: set[str] = set()
        self.note(pid=os.getpid())

    def note(self, **values: Any) -> None:
        """Write a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def begins(self, phase: str) -> None:
        """Something is under way; the signal comes some time after its begin."""
        self._under_way.add(phase)
        if self._kill is not None and phase == self._kill.phase:
            self._begun += 1
            if self._begun == self._kill.number:
                threading.Thread(target=self._end, daemon=True).start()

    def ends(self, phase: str) -> None:
        """It is over."""
        self._under_way.discard(phase)

    def _end(self) -> None:
        assert self._kill is not None
        time.sleep(self._kill.delay_s)
        self.note(under_way=sorted(self._under_way))
        os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, first: str, last: str, phase: str) -> None:
        """Note what is under way from the begin of the first method to the end of the last."""
        for name in dict.fromkeys((first, last)):
            setattr(owner, name, self._noting(getattr(owner, name), phase, begins=name == first, ends=name == last))

    def _noting(self, method: Callable[..., Any], phase: str, *, begins: bool, ends: bool) -> Callable[..., Any]:
        def noted(*given: Any, **options: Any) -> Any:
            if begins:
                self.begins(phase)
            try:
                return method(*given, **options)
            finally:
                if ends:
                    self.ends(phase)

        return noted


def ready(rank: int) -> int:
    """Once a process runs this, it is connected with the others."""
    return rank


def train_on(rank: int, plans: Sequence[Plan], folder: str, steps: int, every: int, kill: Kill | None) -> dict[str, Any]:
    """Train from the last whole checkpoint on, of which one is written beside training every few steps.

    Layers migrate from the first plan to the second and back all the time, if there is a second.

    Returns:
        The step that it has begun with, how many folders are half written and refused, and either the digests of all values by
        layer, or the line that it ended with.
    """
    warnings.simplefilter("default")
    diary = Diary(Path(folder) / f"diary-{rank}", kill if kill is not None and kill.victim == rank else None)
    for phase, (owner, first_call, last_call) in CALLS.items() if kill is not None else ():
        diary.around(owner, first_call, last_call, phase)
    build, plan = builder(0.0), plans[0]
    stages: Any = build(plan, rank)
    overlap = plan.problem.updates is not None
    given = optimizers_of(stages, "adamw") if overlap else None
    optimizer: Any = optimizer_of("adamw", stages) if given is None else given.all
    for each in optimizer if overlap else [optimizer]:
        each.register_step_pre_hook(lambda *_: diary.begins("update"))
        each.register_step_post_hook(lambda *_: diary.ends("update"))
    first, half, line, migration, writing = 0, 0, None, None, None
    try:
        diary.begins("load")
        with load(plan, stages, optimizers=given, timeout_s=20) as pipe:
            diary.ends("load")
            last = last_checkpoint(folder)
            for each in sorted(Path(folder).glob("step-*")):
                if not (each / ".metadata").exists():
                    try:
                        load_checkpoint(pipe, each, optimizer)
                    except InvalidInput as error:
                        half += "found no .metadata" in str(error)
            if last is not None:
                first, path = last
                load_checkpoint(pipe, path, optimizer, convert=True)  # layers have migrated
            for step in range(first, steps):
                if len(plans) > 1 and (migration is None or migration.state != "running"):
                    other = plans[1] if pipe.plan == plans[0] else plans[0]
                    diary.begins("migration")
                    migration = begin_migration(pipe, None if overlap else optimizer, other, build=build, chunk_bytes=CHUNK)
                pipe.step(*make_batch(plan, step))
                if not overlap:
                    optimizer.step()
                    optimizer.zero_grad()
                diary.note(step=step + 1)
                if writing is not None and writing.done:
                    writing.wait()
                    diary.note(whole=int(writing.path.name.split("-")[1]))
                if (step + 1) % every == 0:
                    writing = save_checkpoint(pipe, f"{folder}/step-{step + 1}", optimizer, beside=True)
                if isinstance(migration, Migration):
                    migration.between_steps()
                    if migration.state != "running":
                        diary.ends("migration")
            values = digests(stages, pipe.plan)
    except SchedcError as error:
        line, values = str(error), {}
    return {"first": first, "half": half, "line": line, "values": values}


def digests(stages: Mapping[int, nn.Module], plan: Plan) -> dict[int, str]:
    """By layer, a digest of its weights and buffers."""
    found = {}
    for stage, module in stages.items():
        bounds = plan.problem.stages[stage].layers
        assert bounds is not None
        for number, layer in enumerate(module.children(), bounds[0]):
            digest = hashlib.sha256()
            for name, tensor in layer.state_dict().items():
                digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
            found[number] = digest.hexdigest()
    return found

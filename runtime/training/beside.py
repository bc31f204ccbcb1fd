"""Checkpoints that are written beside training: in go copies of what is saved, out comes a `Writing` that says how far it is.

Between two steps the state is copied into the host's memory, into the same each time (DynPipe, V.C.2: serialization). All else,
planning, writing and the metadata last, torch's `async_save` does in a thread, while the next steps run. Its processes talk over a
group of their own, so that no collective of training waits for one of a checkpoint. Files are written in chunks, as they may be on
another machine: each is on the disk before the next, which goes when no message of training is under way (`TrafficGate`).
"""

from __future__ import annotations

import io
import os
import warnings
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from schedc.errors import CheckFailed
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.common.groups import meet
from schedc.runtime.training.shares import SavesShares
from schedc.runtime.transports.gloo import hang_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

    from schedc.runtime.execution.gate import TrafficGate

CHUNK_BYTES = 4 << 20
_MADE = count()
"""How often this process has connected with the others for checkpoints, so that every time has its own keys in the store."""


class Writing:
    """A checkpoint that is being written, or has been."""

    def __init__(self, path: Path | str, future: Future[Any] | None = None) -> None:
        """Take its folder, and what ends with it; None: it has been written."""
        self.path = Path(path)
        self._future = future
        self._heard = future is None
        """Whether the job knows what has come of it."""

    @property
    def done(self) -> bool:
        """Whether it has ended on this process, well or not."""
        return self._future is None or self._future.done()

    def wait(self, limit_s: float | None = None) -> None:
        """Wait until it is whole.

        Args:
            limit_s: seconds, at most; None: as long as it takes.

        Raises:
            CheckFailed: it could not be written, and why; or it takes longer.
        """
        if self._future is None:
            return
        if not wait([self._future], limit_s).done:
            raise CheckFailed(f"{self.path}: is still being written after {limit_s:g} s")
        self._heard = True
        error = self._future.exception()
        if isinstance(error, (CheckpointException, RuntimeError, OSError)):
            raise CheckFailed(f"{self.path}: was not written: {reason(error)}") from error
        if error is not None:
            raise error

    def settle(self) -> None:
        """As `wait`, but a failure that the job knows of is not raised again."""
        if self._heard:
            wait([self._future] if self._future else [])
        else:
            self.wait()


def reason(error: BaseException) -> str:
    """Why torch has not saved, or loaded, in one line: of all processes, the first that says so."""
    first: object = next(iter(error.failures.values()), (error,))[0] if isinstance(error, CheckpointException) else error
    lost = isinstance(error, RuntimeError) and ("gloo" in str(error) or "onnection" in str(error))
    return "another process has ended" if lost else " ".join(str(first).split())[:200]


class GatedFiles(FileSystem):
    """torch's, whose files are written in chunks, each through the gate."""

    def __init__(self, gate: TrafficGate) -> None:
        """Wait at this gate."""
        self._gate = gate

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """As torch's; a new file."""
        with _Chunks(path, mode, self._gate) as stream:
            yield stream


class _Chunks(io.FileIO):
    """Writes `CHUNK_BYTES`; then those are on the disk, and the gate is open, before more are written."""

    def __init__(self, path: str | os.PathLike[str], mode: str, gate: TrafficGate) -> None:
        super().__init__(path, mode)
        self._gate, self._left = gate, 0

    def write(self, data: ReadableBuffer) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            if not self._left:
                os.fsync(self.fileno())
                self._gate.wait()
                self._left = CHUNK_BYTES
            written = super().write(rest[: self._left])
            self._left, rest = self._left - written, rest[written:]
        return size


class Writer:
    """Writes one checkpoint after the other beside the training of a pipe; all processes of the job make it together."""

    def __init__(self, timeout_s: float) -> None:
        """Connect the processes; `timeout_s` is how long closing waits, at most.

        Raises:
            TransferFailed: a process does not come.
        """
        self._timeout_s = timeout_s
        store = PrefixStore(f"schedc/beside/{next(_MADE)}", _get_default_store())
        try:  # where a process ends after it has come, torch gives up when its timeout is over for the fifth time
            first = meet(store, dist.get_rank(), range(dist.get_world_size()), timeout_s)
            self._group = dist.new_group(backend="gloo", timeout=first)
        except RuntimeError as error:
            raise TransferFailed(
                "a rank meets the others for its first checkpoint beside steps: one has ended, or is late"
            ) from error
        gloo = self._group._get_backend(torch.device("cpu"))
        gloo._set_default_timeout(timedelta(minutes=30))  # from here on: a slow disk is no reason to give up
        on_device = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_device, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=on_device
            )
        )
        self._writing: Writing | None = None

    def write(self, path: Path | str, state: dict[str, Any], gate: TrafficGate) -> Writing:
        """Copy the state, and begin to write it, through the gate. Nothing else is being written, by `settle`."""
        files = FileSystemWriter(path)
        files.fs = GatedFiles(gate)
        future = async_save(
            state, storage_writer=files, process_group=self._group, async_stager=self._stager, planner=SavesShares()
        )
        assert isinstance(future, Future)  # as the copy has been made
        gate.use(1)
        future.add_done_callback(lambda _: gate.use(-1))
        future.add_done_callback(self._let_go)
        self._writing = Writing(path, future)
        return self._writing

    def settle(self) -> None:
        """Wait for what is being written.

        Raises:
            CheckFailed: it could not be written, and the job has not heard of it.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.settle()

    def close(self) -> None:
        """As `settle`, but for at most `timeout_s`, and with a warning in place of an error; free the copy."""
        try:
            if self._writing is not None and not self._writing.done:
                self._writing.wait(self._timeout_s)
            self.settle()
        except CheckFailed as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
            hang_up(self._group)
        if dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._stager.close()

    def _let_go(self, future: Future[Any]) -> None:
        """Where a process is lost, let the others' threads know: torch has them wait for each other."""
        if isinstance(future.exception(), RuntimeError):
            hang_up(self._group)

"""A child process that is asked questions: `Child` starts it, asks, and says how it ended if it does; `serve` is its side of it.

Question and answer are bytes, each behind its length, over one socket. Whatever the child prints goes into a file, whose last line
says why it died. The child is the first of a session of its own, so that it is ended with all that it started. It ends itself once
the socket is closed here, which the system does for a process that is killed. It can say how much memory it has had at most.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

LENGTH = struct.Struct(">Q")
"""What is sent before each question and answer."""
LOOK_S = 1.0
"""How often a child that does not answer is looked at: what it started may keep the socket open after it died."""
ENDING_S = 2.0
"""How long a child whose socket is closed has to end by itself."""
TAIL_BYTES = 4096
"""The last line of what a child printed is looked for in this many bytes."""
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)  # the command line leaves SIGPIPE as it is, which would end this process


class ChildDied(Exception):
    """The child has ended without an answer; the message says how."""


class TookTooLong(Exception):
    """The child had not answered in time, and was killed."""


class Child:
    """A process that answers; as a context manager, it ends with the block. Only `hang_up` is for other threads."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Start it.

        Args:
            arguments: of the Python interpreter, as in `-m schedc.study.executors`; the number of the socket is put behind them.
            variables: of its environment, beside those of this process.
        """
        self._socket, theirs = socket.socketpair()
        self._printed = TemporaryFile()  # noqa: SIM115
        self._has_ended = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, *arguments, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, **(variables or {})},
            )
        except BaseException:
            self._socket.close()
            self._printed.close()
            raise
        finally:
            theirs.close()

    def __enter__(self) -> Child:
        """The child itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it."""
        self.close()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def ask(self, question: bytes, limit_s: float | None = None) -> bytes:
        """Its answer.

        Args:
            question: what it understands.
            limit_s: it is killed if it has not answered after this long; None: never.

        Raises:
            ChildDied: it ended, before the question or after it.
            TookTooLong: the limit.
        """
        end_s = None if limit_s is None else time.monotonic() + limit_s
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(LENGTH.pack(len(question)) + question, _NO_SIGNAL)
            (length,) = LENGTH.unpack(self._received(LENGTH.size, end_s))
            return self._received(length, end_s)
        except TimeoutError:
            self._end()
            raise TookTooLong from None
        except (EOFError, ConnectionError):
            raise ChildDied(self._how_it_ended()) from None

    def hang_up(self) -> None:
        """End it soon, from any thread: who waits for an answer learns that it died."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it now, with all that it started."""
        self._end()
        self._socket.close()
        self._printed.close()

    def _received(self, size: int, end_s: float | None) -> bytes:
        """The next bytes from the child."""
        got = bytearray()
        while len(got) < size:
            left_s = LOOK_S if end_s is None else min(LOOK_S, end_s - time.monotonic())
            if left_s <= 0:
                raise TimeoutError
            has_ended = self._process.poll() is not None
            self._socket.settimeout(0 if has_ended else left_s)
            try:
                part = self._socket.recv(size - len(got))
            except (TimeoutError, BlockingIOError):
                if has_ended:
                    raise EOFError from None
                continue
            if not part:
                raise EOFError
            got += part
        return bytes(got)

    def _end(self) -> None:
        """Kill it and what it started, once: later its number may be another process's."""
        if self._has_ended:
            return
        self._has_ended = True
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _how_it_ended(self) -> str:
        """How it ended, and the last line that it printed."""
        with suppress(subprocess.TimeoutExpired):  # it closed its end of the socket and goes on; it is killed
            self._process.wait(ENDING_S)
        self._end()
        status = self._process.returncode
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = self._printed.read().decode(errors="replace").split("\n")
        ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"ended {ended}" + (f": {last}" if last else "")


def serve(number: int, answer: Callable[[bytes], bytes], idle_s: float | None = None) -> None:
    """Answer one question after another until the asker closes the socket; this process and those it started are killed then.

    `number` is the socket's descriptor. It returns if nobody asks for `idle_s`; None: it waits.
    """
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    line = socket.socket(fileno=number)
    threading.Thread(target=_listen, args=(line, questions), daemon=True).start()
    while True:
        try:
            question = questions.get(timeout=idle_s)
        except queue.Empty:
            return
        made = answer(question)
        line.sendall(LENGTH.pack(len(made)) + made)


def _listen(line: socket.socket, questions: queue.SimpleQueue[bytes]) -> None:
    """Take questions until there are no more; then end, also in the middle of an answer."""
    try:
        with line.makefile("rb") as incoming:
            while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
                (length,) = LENGTH.unpack(head)
                questions.put(incoming.read(length))
    finally:  # also where the asker ended with an answer unread, which resets the connection
        os.killpg(os.getpgrp(), signal.SIGKILL)


_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`."""
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory_bytes() -> int:
    """The most memory that this process, or one it started and waited for, has had resident."""
    return max(own_peak_memory_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _UNIT)


def own_peak_memory_bytes() -> int:
    """The most memory that this process has had resident since it began; see `forget_peak_memory`."""
    if _STATUS.exists():  # Linux passes ru_maxrss on through exec, so there it may be that of the process that started this one
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def forget_peak_memory() -> None:
    """Let the peak of this process begin at what is resident now, where the system can (Linux); elsewhere it stays."""
    if _CLEAR.exists():
        try:
            _CLEAR.write_text("5")
        except OSError:  # a container may forbid it
            return

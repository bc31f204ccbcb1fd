"""The child's side of `schedc.io.child`: answers what comes over the socket, and ends with whoever asks."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from typing import TYPE_CHECKING

from schedc.io.child import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable


def serve(number: int, answer: Callable[[bytes], bytes], idle_s: float | None = None) -> None:
    """Answer one question after another until the asker closes the socket; this process and those it started are killed then.

    Args:
        number: the descriptor of the socket.
        answer: makes an answer of a question, in the thread of the caller.
        idle_s: return if nobody asks for this long; None: wait.
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

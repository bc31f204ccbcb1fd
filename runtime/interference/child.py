"""A process that the training of a forest starts: it does a stage's work and says how long it takes, or competes with it.

    python -m schedc.runtime.interference.child SOCKET

`schedc.io.child.Child` starts it, asks, and ends it; it ends itself when who started it ends, however that ends. Questions and
answers are JSON. `{"compete": "burn", "duty": 0.5}` computes in the caches for half of the time, `"stream"` copies memory, until
another question; duty 0 rests. `{"measure_s": 2.0, "window_s": 0.25, "busy": 0.8}` works as a stage does, in a thread, for that
long, of which it rests a fifth, as a rank waits for others; it answers with a list: of each window what was seen, and the mean
nanoseconds of an iteration.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from statistics import fmean

import numpy as np

from schedc.io.child import serve
from schedc.runtime.interference.nvml import find_gpu
from schedc.runtime.interference.seen import Seen

BATCH, WIDTH, LAYERS = 64, 512, 3
STATE_BYTES = 8 << 20
"""What the optimizer of the stage streams over in each iteration."""
WARM_UP = 3
"""Iterations before the first that counts."""
COMPETING_BYTES = 64 << 20
"""What a stream copies: more than any cache holds."""
PIECE = 1 << 20
"""Of that, numbers in a piece."""
PERIOD_S = 0.02
"""In which a competitor works for the share that is its duty, and then rests."""


class StageLoop:
    """F, B and W of a few linear layers, and an update that streams over memory: what a stage on a CPU does."""

    def __init__(self) -> None:
        """Make weights and inputs."""
        draw = np.random.default_rng(0)
        self._weights = [draw.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5 for _ in range(LAYERS)]
        self._inputs = draw.standard_normal((BATCH, WIDTH), np.float32)
        self._state = np.ones(STATE_BYTES // 4, np.float32)

    def run(self) -> None:
        """One iteration."""
        outputs = [self._inputs]
        for weight in self._weights:
            outputs.append(np.tanh(outputs[-1] @ weight))
        gradient = outputs[-1]
        for weight, given, made in zip(reversed(self._weights), reversed(outputs[:-1]), reversed(outputs[1:]), strict=True):
            gradient = gradient * (1 - made * made)
            given.T @ gradient
            gradient = gradient @ weight.T
        self._state *= np.float32(0.999)


def measure(loop: StageLoop, seen: Seen, measure_s: float, window_s: float, busy: float) -> list[tuple[dict[str, float], float]]:
    """Of each window what was seen, and the mean nanoseconds of the iterations that ended in it; it has at least one."""
    took_ns: list[int] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            begun_ns = time.perf_counter_ns()
            loop.run()
            took_ns.append(time.perf_counter_ns() - begun_ns)
            if busy < 1:
                time.sleep(took_ns[-1] / 1e9 * (1 / busy - 1))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    found, end_s, known = [], time.monotonic() + measure_s, 0
    seen.take()
    while time.monotonic() < end_s:
        time.sleep(window_s)
        ended = len(took_ns)
        if ended > known:
            found.append((seen.take(), fmean(took_ns[known:ended])))
            known = ended
    stop.set()
    worker.join()
    return found


class Competitor:
    """A thread that works, or rests."""

    def __init__(self) -> None:
        """Rest."""
        self._kind, self._duty = "burn", 0.0
        self._wake = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def set(self, kind: str, duty: float) -> None:
        """Work like this from now on."""
        self._kind, self._duty = kind, duty
        self._wake.set()

    def _run(self) -> None:
        small, product = np.full((128, 128), 0.01, np.float32), np.empty((128, 128), np.float32)
        large = np.ones((2, 0), np.float32)
        at = 0
        while True:
            if not self._duty:
                self._wake.wait()
                self._wake.clear()
                continue
            if self._kind == "stream" and not large.size:
                large = np.ones((2, COMPETING_BYTES // 4), np.float32)
            end_s = time.perf_counter() + PERIOD_S * self._duty
            while time.perf_counter() < end_s:
                if self._kind == "stream":  # piece after piece, so that the end of the time is seen
                    np.copyto(large[1, at : at + PIECE], large[0, at : at + PIECE])
                    at = (at + PIECE) % large.shape[1]
                else:
                    np.matmul(small, small, out=product)
            time.sleep(PERIOD_S * (1 - self._duty))


def main() -> None:
    """Answer until who started this process closes the socket."""
    competitor, loop, seen = Competitor(), StageLoop(), Seen(find_gpu())
    for _ in range(WARM_UP):
        loop.run()

    def answer(question: bytes) -> bytes:
        said = json.loads(question)
        if "compete" in said:
            competitor.set(said["compete"], said["duty"])
            return b"null"
        return json.dumps(measure(loop, seen, said["measure_s"], said["window_s"], said["busy"])).encode()

    serve(int(sys.argv[-1]), answer)


if __name__ == "__main__":
    main()

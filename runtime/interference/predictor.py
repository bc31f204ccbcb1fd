"""What a trained forest says of this rank now: for a monitor that takes it as evidence (`Monitor(predictor=...)`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.runtime.interference.forest import read_forest
from schedc.runtime.interference.nvml import find_gpu
from schedc.runtime.interference.seen import Seen

if TYPE_CHECKING:
    from pathlib import Path

WINDOW_S = 0.25
"""What is seen is looked at over this long, while training a forest, too."""


class SlowdownPredictor:
    """A rank's, from the file that `schedc interference` has written."""

    every_s = WINDOW_S
    """How often it may be asked."""

    def __init__(self, path: Path | str, *, gpu: int = 0) -> None:
        """Read the forest, and look for the first time.

        Args:
            path: of the file.
            gpu: the number of this rank's GPU, as CUDA counts; without a GPU it counts for nothing.

        Raises:
            InvalidInput: the file is none, or its forest looks at what this machine does not have.
            Unsupported: this is not Linux.
        """
        self._forest = read_forest(path)
        self._seen = Seen(find_gpu(gpu))
        self._forest.predict_one(self._seen.take())

    def slowdown(self) -> float:
        """How many times as long as alone the stages of this process take now, by what it has seen since the last call."""
        return self._forest.predict_one(self._seen.take())

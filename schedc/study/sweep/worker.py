"""The child process that compiles jobs of a sweep, one after another: `python -m schedc.study.sweep.worker IDLE_S SOCKET`.

It ends after IDLE_S without a question; 0: it does not.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys

from schedc.io.serve import serve
from schedc.study.sweep.one_job import answer_to


def main() -> None:
    """Answer until nobody asks."""
    idle_s = float(sys.argv[1])
    serve(
        int(sys.argv[2]),
        lambda question: json.dumps(dataclasses.asdict(answer_to(pickle.loads(question)))).encode(),
        idle_s or None,
    )


if __name__ == "__main__":
    main()

"""The child process that compiles tasks, one after another: `python -m schedc.study.worker IDLE_S SOCKET`.

It ends after IDLE_S without a question; 0: it does not. A question is a pickled `CompileTask`, an answer the fields of a
`CompileRow` as a JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys

from schedc.io.child import serve
from schedc.study.task import row_of


def main() -> None:
    """Answer until nobody asks."""
    idle_s = float(sys.argv[1])
    serve(
        int(sys.argv[2]),
        lambda question: json.dumps(dataclasses.asdict(row_of(pickle.loads(question)))).encode(),
        idle_s or None,
    )


if __name__ == "__main__":
    main()

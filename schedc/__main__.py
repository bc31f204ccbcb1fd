"""The command `schedc`, also as `python -m schedc`: what signals do before the rest is loaded, and when all is done."""

from __future__ import annotations

import gc
import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
COLLECT_EVERY = 100_000
"""Objects made between two looks for garbage: a plan is millions of objects that stay, and hardly any are in cycles."""


def main() -> None:
    """Run the command line. Always ends by `SystemExit`; while the commands load, a signal ends it with a line, not a traceback."""
    before = {number: signal.signal(number, _end) for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    gc.set_threshold(COLLECT_EVERY, 20, 20)
    from schedc.cli.app import main as run

    for number, handler in before.items():
        signal.signal(number, handler)
    try:
        run()
    except SystemExit as end:
        if not end.code:
            for number in SIGNALS:  # all is done, and the status says so, while the interpreter clears up
                signal.signal(number, signal.SIG_IGN)
        raise


def _end(number: int, _frame: object) -> None:
    os.write(2, b"schedc: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()

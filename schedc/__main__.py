"""The command `schedc`, also as `python -m schedc`: what must be there before the rest is loaded."""

from __future__ import annotations

import os
import signal

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Always ends by `SystemExit`; while the commands load, an interruption ends it without a traceback."""
    signal.signal(signal.SIGINT, _end)
    from schedc.cli.app import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(*_: object) -> None:
    os.write(2, b"schedc: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()

"""`python -m schedc.cli.hook verify|lint [OPTIONS] FILES`: a command on one file after another, as pre-commit calls a hook.

pre-commit appends the files to the hook's arguments. Each is checked, so that all findings are shown at once. The exit status is
the largest of those of the command.
"""

from __future__ import annotations

import argparse
import sys

from schedc.cli.app import main


def run(arguments: list[str]) -> int:
    """Run the command on each file; returns the largest status."""
    parser = argparse.ArgumentParser(prog="python -m schedc.cli.hook", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", choices=("verify", "lint"))
    parser.add_argument("--job", help="the job of all files")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a value of the job, as of the command")
    parser.add_argument("files", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    options = [] if given.job is None else ["--job", given.job]
    options += [part for value in given.set for part in ("--set", value)]
    largest = 0
    for file in given.files:
        try:
            main([given.command, file, *options])
        except SystemExit as end:
            largest = max(largest, end.code if isinstance(end.code, int) else 0)
    return largest


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

"""The suite does not depend on how it was started: what would be inherited is made the same, here and for what tests start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from suite.surroundings import VARIABLES

SUPPORT = Path(__file__).parent / "support"
CHILD = """
import os, subprocess, sys
from suite import surroundings
surroundings.settle()
killed = subprocess.run([sys.executable, "-c", "import signal; signal.raise_signal(signal.SIGINT)"], stderr=subprocess.DEVNULL)
print(killed.returncode, os.umask(0o022), {name: os.environ.get(name) for name in surroundings.VARIABLES} == surroundings.VARIABLES)
"""


def test_what_a_process_in_the_background_inherits_is_settled() -> None:
    environment = {**os.environ, **dict.fromkeys(VARIABLES, "1"), "PYTHONPATH": str(SUPPORT)}
    for name in [name for name in VARIABLES if name.startswith("PYTHON")]:
        del environment[name]  # else this child would not run as usual
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environment,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{-signal.SIGINT} {0o022} True\n", "")


def test_this_process_has_settled() -> None:
    assert {name: os.environ.get(name) for name in VARIABLES} == VARIABLES
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

"""Signals at moments that are hard to hit by hand: while the command is loaded, and when it is done."""

from __future__ import annotations

import subprocess
import sys
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING

import pytest

from schedc.formats.plan.plan_file import read_plan

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
pipeline = { ranks = 2, microbatches = 2 }
profile = { forward = "1 ms", backward_input = "1 ms", backward_weight = "1 ms" }
"""

AT_IMPORT = """
import signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal({number})

sys.meta_path.insert(0, Finder())
from schedc.__main__ import main
main()
"""

AT_EXIT = """
import atexit, signal
from schedc.__main__ import main
atexit.register(signal.raise_signal, {number})
main()
"""


def schedc(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command by a program that sends it a signal."""
    (folder / "job.toml").write_text(JOB)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("number", [SIGINT, pytest.param(SIGTERM, marks=pytest.mark.slow)])
def test_before_the_commands_are_loaded_it_ends_with_a_line(tmp_path: Path, number: int) -> None:
    done = schedc(tmp_path, AT_IMPORT.format(module="schedc.cli.app", number=int(number)), "compile", "job.toml", "-o", "plan.json")
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "schedc: interrupted\n")
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("number", [SIGINT, pytest.param(SIGTERM, marks=pytest.mark.slow)])
def test_while_the_compiler_is_loaded_the_first_plan_is_waited_for(tmp_path: Path, number: int) -> None:
    done = schedc(
        tmp_path,
        AT_IMPORT.format(module="schedc.compile.driver", number=int(number)),
        "compile",
        "job.toml",
        "-o",
        "plan.json",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("interrupted")
    assert not read_plan(tmp_path / "plan.json").made_by.reproducible


def test_other_commands_say_that_they_were_interrupted(tmp_path: Path) -> None:
    done = schedc(
        tmp_path, AT_IMPORT.format(module="schedc.analysis.bounds.lower_bounds", number=int(SIGINT)), "bounds", "job.toml"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "schedc: interrupted\n")


@pytest.mark.parametrize("number", [SIGINT, pytest.param(SIGTERM, marks=pytest.mark.slow)])
def test_when_all_is_done_the_status_holds(tmp_path: Path, number: int) -> None:
    done = schedc(tmp_path, AT_EXIT.format(number=int(number)), "compile", "job.toml", "-o", "plan.json", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    read_plan(tmp_path / "plan.json")

"""Kernels: plain and compiled from one source, compiled in a child process, and a cache that may fail but not harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inputs.toy_kernels import double, shout, sum_of_squares, whisper

from schedc.compiled import compiler as module
from schedc.compiled.compiler import at_hand, compile_ahead, compiled
from schedc.solvers.common.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = """
import sys
import numpy as np
from schedc.compiled.compiler import at_hand, compiled
from inputs.toy_kernels import sum_of_squares
before = at_hand(sum_of_squares)
values = compiled(sum_of_squares)(np.arange(4))
hits = sum(compiled(sum_of_squares).stats.cache_hits.values())
print(before, values, hits, "numba" in sys.modules)
"""


@contextmanager
def as_if_just_begun(cache: Path) -> Iterator[Path]:
    """A process that has loaded and compiled nothing, and its directory in the cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(cache))
        for name in ("_loaded", "_parts", "_children"):
            patch.setattr(module, name, {})
        for name in ("_own", "_scratches"):
            patch.setattr(module, name, [])
        directory = module._directory
        directory.cache_clear()
        yield cache / "schedc"
        module._clean_up()
        directory.cache_clear()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """A process as if it had just begun, with an empty cache."""
    with as_if_just_begun(tmp_path / "cache") as directory:
        yield directory


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has two kernels, compiled once for all tests that begin with one; they copy it."""
    cache = tmp_path_factory.mktemp("kept")
    with as_if_just_begun(cache):
        compile_ahead(double, sum_of_squares)
        assert module._children[double].wait(timeout=250) == 0
    return cache


@pytest.fixture
def filled(fresh: Path, kept: Path) -> Path:
    """As `fresh`, but the cache has `double`; its file."""
    fresh.mkdir(parents=True)
    return Path(shutil.copy(kept / "schedc" / module._file_name(double), fresh))


def test_a_kernel_runs_plain_and_compiled(fresh: Path) -> None:
    values = np.arange(5)
    assert sum_of_squares([0, 1, 2, 3, 4]) == sum_of_squares(values) == 30
    assert not at_hand(sum_of_squares)
    assert compiled(sum_of_squares)(values) == 30
    assert at_hand(sum_of_squares)
    assert [path.name.split("-")[0] for path in fresh.iterdir()] == ["inputs.toy_kernels.sum_of_squares"]
    assert len(module._scratches) == 2
    assert not any(Path(scratch.name).exists() for scratch in module._scratches), "as this process may be killed"


@pytest.mark.slow
def test_a_variant_does_without_features_once_compiled(fresh: Path) -> None:
    assert shout(2) == whisper(2) == 20
    compile_ahead(shout, whisper)
    assert module._children[whisper].wait(timeout=250) == 0
    assert compiled(shout)(2) == 20
    assert compiled(whisper)(2) == 2
    assert sum(compiled(whisper).stats.cache_hits.values()) == 1  # type: ignore[attr-defined]
    assert sorted(path.name.split("-")[0] for path in fresh.iterdir()) == ["inputs.toy_kernels.shout", "inputs.toy_kernels.whisper"]


def test_other_types_are_refused_rather_than_compiled(filled: Path) -> None:
    with pytest.raises(TypeError, match="No matching definition"):
        compiled(double)(np.zeros(1))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_child_compiles_while_this_process_goes_on(fresh: Path) -> None:
    compile_ahead(double, sum_of_squares)
    assert double(4) == 8
    child = module._children[double]
    assert child.wait(timeout=250) == 0
    assert at_hand(double)
    assert at_hand(sum_of_squares)
    assert sum(compiled(double).stats.cache_hits.values()) == 1  # type: ignore[attr-defined]


def test_a_child_that_fails_leaves_the_work_to_this_process(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHILD", "raise SystemExit(3)")
    assert compiled(double)(4) == 8
    assert at_hand(double)
    assert len(list(fresh.iterdir())) == 1


def test_a_child_ends_with_its_parent(fresh: Path) -> None:
    """However the parent ends, the child's standard input ends then."""
    compile_ahead(double)
    child = module._children[double]
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=250) == 1
    assert list(fresh.iterdir()) == []
    assert not any(Path(scratch.name).exists() for scratch in module._scratches)


def test_a_signal_ends_the_wait_for_a_child(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait until the compiler returns from its C code, as that is in another process."""
    interruption, wait = Interruption(), subprocess.Popen.wait

    def signalled(child: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        assert timeout is not None
        os.kill(os.getpid(), signal.SIGINT)
        return wait(child, timeout)

    monkeypatch.setattr(module, "CHILD", "import time; time.sleep(600)")
    with pytest.MonkeyPatch.context() as patch, interruption.listening():
        patch.setattr(subprocess.Popen, "wait", signalled)
        with pytest.raises(KeyboardInterrupt), interruption.raising():
            compiled(double)
    assert module._children[double].poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "rule-table"])
def test_a_fresh_machine_where_nothing_can_be_kept(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_text("")
    job = Path(__file__).parents[1] / "examples" / "m70-2dc" / "job.toml"
    command = [sys.executable, "-m", "schedc", "compile", str(job), "-o", "plan.json", "--method", method, "--quiet"]
    nowhere = environment_of(**dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), str(tmp_path / "file")))
    done = subprocess.run(command, env=nowhere, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == done.stderr.count("compiled code cannot be kept") <= 1
    assert json.loads((tmp_path / "plan.json").read_text())["certificate"]["makespan_ns"] == 2_736_000_000


@pytest.mark.parametrize("content", [b"PK", None], ids=["cut off", "changed within"])
def test_a_damaged_file_is_compiled_again_with_a_note(
    filled: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    whole = filled.read_bytes()
    middle = len(whole) // 2
    filled.write_bytes(content if content is not None else whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert compiled(double)(4) == 8
    assert "cannot be read" in caplog.text
    module._loaded.clear()
    caplog.clear()
    assert compiled(double)(4) == 8
    assert caplog.text == ""


@pytest.mark.parametrize("at", range(26))
def test_no_damage_of_a_file_gets_past_the_note(fresh: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each of the first bytes of the zip file's directory, where some damage makes `zipfile` fail in other ways."""
    fresh.mkdir(parents=True)
    (fresh.parent / "made").mkdir()
    (fresh.parent / "made" / "double.nbi").write_bytes(b"index")
    packed = bytearray(module._packed(fresh.parent / "made"))
    packed[packed.index(b"PK\x01\x02") + 4 + at] ^= 0xFF
    (fresh / module._file_name(double)).write_bytes(packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_compile", lambda function, _: function)
        patch.setattr(double, "stats", SimpleNamespace(cache_misses={}), raising=False)
        assert module._load(double) is double
    assert "its checksum is wrong" in caplog.text


@pytest.mark.parametrize(
    "setting", [{"XDG_CACHE_HOME": "/" + 300 * "a"}, {"HOME": "/" + 300 * "a"}], ids=["a name too long", "a home too long"]
)
def test_a_directory_that_cannot_be_searched_is_as_one_without_the_file(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: dict[str, str]
) -> None:
    cleared(monkeypatch, **setting)
    assert not at_hand(double)
    assert module._directory() in module._own
    assert caplog.text.count("compiled code cannot be kept") == 1


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become a user who may not enter a directory"
)
def test_a_home_that_cannot_be_entered_is_as_one_without_the_file(tmp_path: Path) -> None:
    """As with the environment of another user: not the file but its folder is forbidden."""
    (tmp_path / "home").mkdir(mode=0o700)
    become = "import os; os.setgid(12345); os.setuid(12345)\n"
    look = "from pathlib import Path\nfrom schedc.compiled import compiler as module\nfrom inputs.toy_kernels import double\n"
    done = run(
        look + "import tempfile; module._file_name(double)\n" + become + "print(module.at_hand(double))\n",
        HOME=str(tmp_path / "home"),
        NUMBA_CACHE_DIR="",
        XDG_CACHE_HOME="",
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("setting", [{"XDG_CACHE_HOME": "relative"}, {"XDG_CACHE_HOME": ""}, {}])
def test_without_a_home_no_directory_is_made_here(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: dict[str, str]
) -> None:
    """A relative `XDG_CACHE_HOME` does not count, and a user without an entry has `~` for a home."""
    cleared(monkeypatch, **setting)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert not at_hand(double)
    assert module._directory() in module._own
    assert "cannot be kept" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_costs_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(SCRIPT, NUMBA_CACHE_DIR=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert done.stdout == "False 14 1 True\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert "compiled code cannot be kept" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "the temporary directory is removed"


@pytest.mark.slow
def test_nothing_at_all_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = "import tempfile\ntempfile.tempdir = '/nowhere'\n"
    done = run(nowhere + SCRIPT, NUMBA_CACHE_DIR=str(tmp_path / "file"))
    assert done.stdout == "False 14 0 True\n", done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
@pytest.mark.parametrize("has", [False, True])
def test_a_full_disk_costs_a_line(tmp_path: Path, kept: Path, has: bool) -> None:
    """The directory takes files, but not their contents: neither what is compiled nor what the cache has can be unpacked."""
    if has:
        (tmp_path / "schedc").mkdir()
        shutil.copy(kept / "schedc" / module._file_name(sum_of_squares), tmp_path / "schedc")
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    done = run(full + SCRIPT, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stdout == f"{has} 14 0 True\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert "nothing can be written in" in done.stderr
    assert len(list((tmp_path / "schedc").iterdir())) == has


def test_a_cache_that_is_only_readable_is_used(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_directory", lambda: pytest.fail("nothing is written"))
    assert compiled(double)(4) == 8
    assert caplog.text == ""


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    environment = environment_of(NUMBA_CACHE_DIR=str(tmp_path))
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [child.communicate(timeout=250)[0] for child in both] == ["False 14 1 True\n"] * 2
    assert len(list((tmp_path / "schedc").iterdir())) == 1
    assert run(SCRIPT, NUMBA_CACHE_DIR=str(tmp_path)).stdout == "True 14 1 True\n"


def cleared(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """No cache's directory in the environment but these."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def environment_of(**settings: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings}


def run(script: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment_of(**settings), capture_output=True, text=True, timeout=250, check=False)


def test_what_ends_the_wait_does_not_end_numbas_work(monkeypatch: pytest.MonkeyPatch, filled: Path) -> None:
    """Of a module or a registry that is filled to a half, numba would use the half."""
    assert filled.exists()
    ended, load = threading.Event(), module._load

    def slow_load(function: Callable[..., Any]) -> Any:
        signal.raise_signal(signal.SIGINT)
        form = load(function)
        ended.set()
        return form

    monkeypatch.setattr(module, "_load", slow_load)
    interruption = Interruption()
    with interruption.listening(), pytest.raises(KeyboardInterrupt), interruption.raising():
        compiled(double)
    assert ended.wait(60)

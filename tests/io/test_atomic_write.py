from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from schedc.errors import InvalidInput
from schedc.io.outputs import write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, b"one")
    write_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.json"]


def test_new_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"x/a\.json: cannot be written: the directory .*x does not exist; create it first"):
        write_atomically(tmp_path / "x" / "a.json", b"")
    assert os.listdir(tmp_path) == []


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, found in ((tmp_path / "pipe", "not a regular file"), (tmp_path, "a directory")):
        with pytest.raises(InvalidInput, match=found):
            write_atomically(path, b"")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(InvalidInput if isinstance(error, OSError) else type(error)) as raised:
        write_atomically(path, b"new")
    if isinstance(error, OSError):
        assert str(raised.value) == f"{path}: cannot be written: No space left on device"
    assert os.listdir(tmp_path) == ["a.json"]
    assert path.read_bytes() == b"old"


def test_names_as_long_as_they_can_be(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("n" * 255), b"x")
    with pytest.raises(InvalidInput, match="name too long"):
        write_atomically(tmp_path / ("n" * 256), b"x")

"""What an installed package holds: every folder with code, under one import name, with its types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from schedc import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINKED = ("models", "runtime", "solvers")


def _packages() -> set[str]:
    """Import names of the real folders with code: `schedc` without its links, and the linked ones beside it."""
    found = set()
    for name in ("schedc", *LINKED):
        for directory, children, files in os.walk(ROOT / name):
            children[:] = [child for child in children if not (Path(directory) / child).is_symlink()]
            if "__init__.py" in files:
                parts = Path(directory).relative_to(ROOT).parts
                found.add(".".join(parts if name == "schedc" else ("schedc", *parts)))
    return found


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_to_the_folders_beside(name: str) -> None:
    assert Path(os.readlink(ROOT / "schedc" / name)) == Path("..") / name


@pytest.mark.parametrize("name", LINKED)
def test_a_folder_imported_from_the_root_says_its_right_name(name: str) -> None:
    command = [sys.executable, "-c", f"import {name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(f"ImportError: found {name} as a package of its own, expected it in schedc: import schedc.{name}\n")


def test_every_folder_with_modules_is_a_package() -> None:
    for name in ("schedc", *LINKED):
        for path in (ROOT / name).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), (
                f"{path.parent} has modules and no __init__.py, so no wheel would hold it"
            )


def test_types_are_shipped() -> None:
    assert (ROOT / "schedc" / "py.typed").is_file()
    assert {"py.typed", "*.pyi"} <= set(PROJECT["tool"]["setuptools"]["package-data"]["schedc"])


@pytest.mark.slow
def test_wheel_has_one_import_name_and_all_packages(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a build leaves files where it builds
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("schedc", *LINKED):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True, timeout=250)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (top_level,) = (name for name in names if name.endswith("/top_level.txt"))
        assert archive.read(top_level).decode().split() == ["schedc"]
    data = {str(path.relative_to(ROOT)) for path in (ROOT / "schedc" / "costs").iterdir() if path.suffix in (".toml", ".txt")}
    assert len(data) == 3
    page = {str(path.relative_to(ROOT)) for path in (ROOT / "schedc" / "view" / "report" / "page").iterdir()}
    assert {path.rpartition(".")[2] for path in page} == {"css", "html", "js"}
    table = "schedc/study/loss/published_delays.toml"
    assert {"schedc/py.typed", "schedc/__init__.pyi", table, *data, *page} <= set(names)
    assert {f"{package.replace('.', '/')}/__init__.py" for package in _packages()} <= set(names)
    assert not [name for name in names if not name.startswith(("schedc/", f"schedc-{__version__}.dist-info/"))]

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

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
LINKED = ("models", "runtime", "solvers")


def _folders_with_code() -> dict[str, Path]:
    """Import name to folder, from the real folders: `schedc` without its links, and the linked ones beside it."""
    found = {}
    for name in ("schedc", *LINKED):
        for directory, children, files in os.walk(ROOT / name):
            children[:] = [child for child in children if not (Path(directory) / child).is_symlink()]
            if "__init__.py" in files:
                folder = Path(directory).relative_to(ROOT)
                parts = folder.parts if name == "schedc" else ("schedc", *folder.parts)
                found[".".join(parts)] = folder
    return found


def test_listed_packages_are_the_folders_with_code() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(_folders_with_code())


def test_mapped_folders_are_where_the_code_is() -> None:
    mapped = {name: Path(folder) for name, folder in SETUPTOOLS["package-dir"].items()}
    folders = _folders_with_code()
    assert mapped == {name: folders[name] for name in mapped}
    assert set(mapped) == {name for name, folder in folders.items() if folder.parts[0] in LINKED} | {"schedc"}


@pytest.mark.parametrize("name", LINKED)
def test_links_resolve_to_the_mapped_folders(name: str) -> None:
    link = ROOT / "schedc" / name
    assert link.is_symlink()
    assert Path(os.readlink(link)) == Path("..") / name
    assert link.resolve() == (ROOT / SETUPTOOLS["package-dir"][f"schedc.{name}"]).resolve()


def test_every_folder_with_modules_is_a_package() -> None:
    for name in ("schedc", *LINKED):
        for path in (ROOT / name).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), (
                f"{path.parent} has modules and no __init__.py, so no wheel would hold it"
            )


def test_types_are_shipped() -> None:
    assert (ROOT / "schedc" / "py.typed").is_file()
    assert {"py.typed", "*.pyi"} <= set(SETUPTOOLS["package-data"]["schedc"])


@pytest.mark.slow
def test_wheel_has_one_import_name_and_all_packages(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a build leaves files where it builds
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
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
    data = {
        str(path.relative_to(ROOT)) for path in (ROOT / "schedc" / "architectures").iterdir() if path.suffix in (".toml", ".txt")
    }
    assert len(data) == 2
    page = {str(path.relative_to(ROOT)) for path in (ROOT / "schedc" / "report" / "page").iterdir()}
    assert {path.rpartition(".")[2] for path in page} == {"css", "html", "js"}
    assert {"schedc/py.typed", "schedc/__init__.pyi", *data, *page} <= set(names)
    for package in SETUPTOOLS["packages"]:
        assert f"{package.replace('.', '/')}/__init__.py" in names

"""The code of another commit in a folder of its own, for benchmarks that run two commits beside each other."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def exported(commit: str | None, folder: Path) -> Path:
    """Where the commit's files are: the folder, which must not exist yet; without a commit, the working tree."""
    if commit is None:
        return ROOT
    folder.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive)
    return folder

"""Layouts of tiny models of several modules, and the bound over them, held against brute force over all layouts and schedules.

Run it as `python benchmarks/layouts/tiny_modules.py --workloads 100 --first 0 --processes 2`. The checks, and what the workloads
are, is `tests/support/oracles/module_checks.py`. A line for each defect, then what was checked; the exit status is 1 if there was a
defect.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from oracles.module_checks import check_modules

if __name__ == "__main__":
    sys.exit(run_numbered(check_modules, "workloads", __doc__.splitlines()[0] if __doc__ else ""))

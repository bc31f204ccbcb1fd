"""Relations between the answers to two jobs: more memory is never worse, other names change nothing. How many hold.

Run it as `python benchmarks/compiler/relations.py --pairs 2000 --first 0 --processes 2`. The relations are
`tests/support/oracles/relations.py`, half of them in odd nanoseconds of seconds and odd bytes of GiB. Relation number n is the same
everywhere and always, and so is the work of each answer. A line for each that does not hold, then what was checked; the exit
status is 1 if one did not.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from benches.numbered_checks import run_numbered
from oracles.relations import check_relation

if __name__ == "__main__":
    sys.exit(run_numbered(check_relation, "pairs", __doc__.splitlines()[0] if __doc__ else ""))

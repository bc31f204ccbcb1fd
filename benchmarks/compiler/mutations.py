"""Valid plans broken on purpose: each mutant is refused by the reader or the verifier, or proven to be as good as it claims.

Run it as `python benchmarks/compiler/mutations.py --mutants 10000`, and with `--graphs`. The plans are of the random jobs of
`benchmarks/compiler/fuzz.py`, or of random graphs and slices (`tests/support/inputs/graphs.py`), by greedy and by random schedules;
the edits and their proofs are `tests/support/inputs/plan_mutations.py`. Prints what became of each kind of edit. A mutant that is
accepted and not as good is a defect of the verifier; it is written to `--keep`, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.plan_mutations import KINDS_OF_GRAPHS, SURVIVED, mutated_plans


def main() -> int:
    """Break plans and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--graphs", action="store_true", help="plans whose stages are a graph, or whose microbatches are in slices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/mutants"), help="where survivors are written")
    options = parser.parse_args()
    outcomes: Counter[tuple[str, str]] = Counter()
    survivors: Counter[str] = Counter()
    begun, done = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in count():
            if done >= options.mutants:
                break
            for kind, outcome, content in mutated_plans(Random(f"{options.seed}:{number}"), Path(folder), graphs=options.graphs):
                done += 1
                outcomes[kind, outcome.partition(":")[0]] += 1
                if outcome.startswith(SURVIVED):
                    survivors[f"{kind}: {outcome}"] += 1
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{kind}-{number}.json").write_bytes(content)
                if done >= options.mutants:
                    break
    columns = sorted({outcome for _, outcome in outcomes})
    for name in (edit.__name__ for edit in KINDS_OF_GRAPHS):
        if any(outcomes[name, column] for column in columns):
            print(f"{name}:")
        for column in columns:
            if outcomes[name, column]:
                print(f"{outcomes[name, column]:9}  {column}")
    print("all:")
    for column in columns:
        print(f"{sum(value for (_, outcome), value in outcomes.items() if outcome == column):9}  {column}")
    print(f"{done} mutants of {number} plans in {time.perf_counter() - begun:.0f} s, {sum(survivors.values())} survivors")
    for what, times in survivors.most_common():
        print(f"{times:9}  {what}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

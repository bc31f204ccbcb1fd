"""`auto` of two commits on cells of the shipped sets, cell by cell and in turn: is any plan worse, or any proof slower?

Each commit is exported to a directory of its own and runs its own code in one process of its own, with the installed libraries; the
two take turns at each cell, under the same limit of deterministic work, so that neither's plans depend on the load of the machine.
Prints for each cell objective, bound and processor time of both. A cell is worse if its objective is, or its bound is lower while
the objective is the same. Where both prove the optimum, the ratio of their times counts; where one does not, the work that is left
goes to searching, so that times say nothing.

Run it as `python benchmarks/compiler/paired_auto.py BEFORE [AFTER] [--sets m70,…] [--every 4] [--limit 4]`; AFTER is the working
tree if it is left out. Exits with 1 if a cell is worse.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from repository.exported_commit import exported

SETS = "m70,m70-wave,m70-loop,pipemorph,zero-bubble,random,large"
CHILD = "PAIRED_AUTO"
MS = 1e6


def main() -> int:
    """Run both commits and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", help="a commit; left out: the working tree")
    parser.add_argument("--sets", default=SETS, help="which sets, separated by commas")
    parser.add_argument("--every", type=int, default=4, help="every this many-th cell of each set")
    parser.add_argument("--limit", type=float, default=4.0, help="of deterministic work for each cell")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = [exported(options.before, Path(folder, "before")), exported(options.after, Path(folder, "after"))]
        children = [_child(tree) for tree in trees]
        rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        cells = [cell for name in options.sets.split(",") for cell in _asked(children[1], {"set": name})[:: options.every]]
        for cell in cells[:1] + cells:  # the first one once more: it compiles what is compiled
            asked = cell | {"limit": options.limit}
            answers = [_asked(child, asked) for child in (children if len(rows) % 2 else children[::-1])]
            rows.append((cell["name"], *(answers if len(rows) % 2 else answers[::-1])))
            if len(rows) > 1:
                print(_line(*rows[-1]), flush=True)
        for child in children:
            child.stdin.close()
            child.wait()
    return _report(rows[1:])


def _child(tree: Path) -> Any:
    return subprocess.Popen(
        [sys.executable, __file__, "-"],
        env=os.environ | {CHILD: "1", "PYTHONPATH": str(tree)},
        cwd=tree,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )


def _asked(child: Any, what: dict[str, Any]) -> Any:
    child.stdin.write(json.dumps(what) + "\n")
    child.stdin.flush()
    return json.loads(child.stdout.readline())


def _answer() -> None:
    """Answer questions on standard input, a line of JSON each."""
    from schedc.compile.driver import compile_problem
    from schedc.solvers.common.base import Limits, SearchSettings
    from schedc.study.bench.instances import instances

    for line in sys.stdin:
        asked = json.loads(line)
        if "name" not in asked:
            print(json.dumps([{"set": asked["set"], "name": each.name} for each in instances(asked["set"])]), flush=True)
            continue
        (problem,) = (each.problem for each in instances(asked["set"]) if each.name == asked["name"])
        begun_s = time.process_time()
        certificate = compile_problem(
            problem, SearchSettings(limits=Limits(deterministic=asked["limit"], workers=2))
        ).plan.certificate
        stage_span = str(certificate.objective) == "stage_span"
        objective_ns = certificate.stage_span_ns if stage_span else certificate.makespan_ns
        taken_s = time.process_time() - begun_s
        print(json.dumps({"ns": objective_ns, "bound_ns": certificate.lower_bound_ns, "cpu_s": taken_s}), flush=True)


def _line(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    shown = [f"{each['ns'] / MS:.3f} ms, gap {1 - each['bound_ns'] / each['ns']:.2%}, {each['cpu_s']:.2f} s" for each in (old, new)]
    return f"{name}: {shown[0]} -> {shown[1]}: {_outcome(old, new)}"


def _outcome(old: dict[str, Any], new: dict[str, Any]) -> str:
    before, after = (old["ns"], -old["bound_ns"]), (new["ns"], -new["bound_ns"])
    return "equal" if before == after else "worse" if after > before else "better"


def _report(rows: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> int:
    outcomes = [_outcome(old, new) for _, old, new in rows]
    print(f"{len(rows)} cells: " + ", ".join(f"{outcomes.count(name)} {name}" for name in ("better", "equal", "worse")))
    proven = [(old["cpu_s"], new["cpu_s"]) for _, old, new in rows if old["ns"] == old["bound_ns"] and new["ns"] == new["bound_ns"]]
    if proven:
        ratios = sorted(new / old for old, new in proven)
        sums = [sum(each) for each in zip(*proven, strict=True)]
        print(
            f"{len(proven)} proven by both: processor time {sums[0]:.1f} -> {sums[1]:.1f} s; "
            f"ratio new / old: median {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}"
        )
    return int("worse" in outcomes)


if __name__ == "__main__":
    if os.environ.get(CHILD):
        _answer()
    else:
        sys.exit(main())

"""The plans of two commits side by side: of every example, and the schedules of the shipped sets, by each deterministic method.

Run it as `python benchmarks/compiler/two_commits.py BEFORE [AFTER]`; AFTER is the working tree if it is left out. Each commit is
exported to a directory of its own and runs its own code in a process of its own, with the installed libraries. A plan is compared
by all that its file says, but for the names of its method and of its bound, which may have changed, the version of the format, and
the origin, which version 1 does not say; a schedule by its orders and its parts. Prints every difference, better or worse, and
counts; exits with 1 if anything became worse, failed, or is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from repository.exported_commit import exported

METHODS = (
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "hanayo",
    "chimera",
    "dualpipe-v",
    *("greedy", "pipemorph", "spread", "rule-table"),
)
FORMER = {"spread": "paced", "rule-table": "rules"}
"""What methods were called in older commits."""
FORMER_BOUND = ('"bound": "windows"', '"bound": "idle-gaps"')
"""What a plan of an older commit says of a bound, and what it would say now."""
SINCE = ("version", "origin")
"""What plans of an older commit say otherwise or not at all; all else is compared: certificate, pipeline, costs, every queue."""
SETS = ("m70", "m70-wave", "m70-loop", "pipemorph", "zero-bubble", "random", "large")
MODULES = {
    "compile_problem": ("schedc.compile.driver", "schedc.compile.fixed_layout", "schedc.compile"),
    "constructive": ("schedc.solvers.driver.registry", "schedc.solvers.registry"),
    "instances": ("schedc.study.bench.instances", "schedc.bench.instances"),
    "plan_json": (
        "schedc.formats.plan.plan_file",
        "schedc.formats.plan.plan_to_file",
        "schedc.text.plan.plan_to_file",
        "schedc.text.plan.plan_file",
        "schedc.text.plan_file",
    ),
    "simulate": ("schedc.analysis.simulation.simulate", "schedc.analysis.simulate"),
}
"""Where functions are, and where they were."""


def main() -> int:
    """Make the plans of both commits and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", help="a commit; left out: the working tree")
    parser.add_argument("--sets", default=",".join(SETS), help="which sets, separated by commas; an empty text for none")
    parser.add_argument("--methods", default=",".join(METHODS), help="which methods, by their present names")
    options = parser.parse_args()
    if os.environ.get("PLANS_OF_TREE"):
        _make_plans(Path(options.before), options.sets, options.methods)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = [
            _plans_of(exported(commit, Path(folder, name)), options.sets, options.methods)
            for name, commit in (("before", options.before), ("after", options.after))
        ]
    return _compare(*made)


def _plans_of(tree: Path, sets: str, methods: str) -> dict[str, dict[str, Any]]:
    """What the tree's code makes of each case, by `case method`."""
    done = subprocess.run(
        [sys.executable, __file__, str(tree), "--sets", sets, "--methods", methods],
        env=os.environ | {"PLANS_OF_TREE": "1", "PYTHONPATH": str(tree)},
        cwd=tree,
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["case"]: row for row in rows}


def _make_plans(tree: Path, sets: str, methods: str) -> None:
    """Print a row of JSON for each case, by the code of the tree, which is first on the path."""
    registry = import_module("schedc.solvers.driver.registry" if _is_new(tree) else "schedc.solvers.registry")
    known = registry.methods(registry.Method) if hasattr(registry, "methods") else registry.METHODS
    named = [(method, method if method in known else FORMER[method]) for method in methods.split(",")]
    for job in sorted(path for path in tree.glob("examples/*/*.toml") if path.name not in ("sweep.toml", "tune.toml")):
        for method, name in named:
            _print(f"{job.relative_to(tree)} {method}", **_compiled(tree, job, name))
    constructive, simulate = _function(tree, "constructive"), _function(tree, "simulate")
    instances = _function(tree, "instances")
    for set_name in filter(None, sets.split(",")):
        for instance in instances(set_name):
            for method, name in named:
                _print(f"{set_name}/{instance.name} {method}", **_scheduled(instance.problem, constructive(name), simulate))


def _is_new(tree: Path) -> bool:
    return (tree / "solvers" / "driver").is_dir()


def _function(tree: Path, name: str) -> Any:
    for module in MODULES[name]:
        file = tree.joinpath(*module.split(".")).with_suffix(".py")
        if file.exists() and f"def {name}(" in file.read_text(encoding="utf-8"):
            return getattr(import_module(module), name)
    raise SystemExit(f"{tree} has no {name}")


def _compiled(tree: Path, job: Path, method: str) -> dict[str, Any]:
    """The plan file that the compiler writes for a job."""
    from schedc.errors import SchedcError
    from schedc.frontend.job import load_job

    try:
        plan = _function(tree, "compile_problem")(load_job(job).problem, **_by(tree, method)).plan
    except SchedcError as error:
        return {"error": type(error).__name__}
    text = _function(tree, "plan_json")(plan).decode().replace(json.dumps(method), '"METHOD"').replace(*FORMER_BOUND)
    said = {key: value for key, value in json.loads(text).items() if key not in SINCE}
    return {"objective_ns": plan.certificate.makespan_ns, "digest": _digest(json.dumps(said))}


def _by(tree: Path, method: str) -> dict[str, Any]:
    """How the tree's compiler takes a method."""
    for module in ("base", "search_settings"):
        if (tree / "solvers" / "common" / f"{module}.py").exists():
            settings = getattr(import_module(f"schedc.solvers.common.{module}"), "SearchSettings", None)
            if settings is not None:
                return {"settings": settings(method=method)}
    return {"method": method}


def _scheduled(problem: Any, construct: Any, simulate: Any) -> dict[str, Any]:
    """What a method makes of a problem."""
    from schedc.errors import SchedcError
    from schedc.ir.ops import token

    try:
        schedule = construct(problem)
    except SchedcError as error:
        return {"error": type(error).__name__}
    orders = "\n".join(" ".join(map(token, order)) for order in schedule.orders)
    timeline = simulate(problem, schedule)
    return {"objective_ns": timeline.objective_ns(problem.objective), "digest": _digest(f"{orders}\n{schedule.parts}")}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _print(case: str, **found: Any) -> None:
    print(json.dumps({"case": case, **found}), flush=True)


def _compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> int:
    """Print what differs and how many cases do; 1 if anything is worse."""
    counts: Counter[str] = Counter()
    for case in sorted(before.keys() | after.keys()):
        old, new = before.get(case, {"error": "no such case"}), after.get(case, {"error": "no such case"})
        outcome = _outcome(old, new)
        counts[outcome] += 1
        if outcome not in ("identical", "refused by both"):
            print(f"{outcome:<15} {case}: {_shown(old)} -> {_shown(new)}")
    print(", ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items())))
    return 1 if counts["worse"] else 0


def _outcome(old: dict[str, Any], new: dict[str, Any]) -> str:
    if "error" in old or "error" in new:
        if "error" in old and "error" in new:
            return "refused by both"
        return "worse" if "error" in new else "better"
    if old["objective_ns"] != new["objective_ns"]:
        return "worse" if new["objective_ns"] > old["objective_ns"] else "better"
    return "identical" if old["digest"] == new["digest"] else "as good"


def _shown(found: dict[str, Any]) -> str:
    return found["error"] if "error" in found else f"{found['objective_ns']} ns"


if __name__ == "__main__":
    sys.exit(main())

"""schedc, a compiler for pipeline-parallel training schedules: a job in, a verified plan with an optimality certificate out."""

from importlib import import_module

__version__ = "0.1.0"
__all__ = [
    *["Assignment", "Bound", "CheckFailed", "Compiled", "Conditions", "ConvergenceConstants", "Defect", "Improvement"],
    *["Infeasible", "InvalidInput", "Job", "LossCandidate", "NoPlanFound", "Plan", "PlanDifference", "Repartition"],
    *["SchedcError", "TimeToLoss", "Timeline", "Unsupported", "Violation", "assign_plan", "compile_job", "diff_plans"],
    *["explain_plan", "lower_bounds", "make_job", "read_job", "read_plan", "repartition_plan", "simulate_plan"],
    *["time_to_loss", "unroll_plan", "verify_plan", "write_plan", "write_profile"],
]


def __getattr__(name: str) -> object:
    """What is public, from `schedc.api`, which is loaded when the first of it is used."""
    if name not in __all__:
        raise AttributeError(f"module 'schedc' has no attribute {name!r}")
    return getattr(import_module("schedc.api"), name)


def __dir__() -> list[str]:
    """What is there and what is public, for completion by editors and shells."""
    return sorted({*globals(), *__all__})

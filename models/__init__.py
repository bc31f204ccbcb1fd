"""Formulations: what is sought, as CP-SAT and MILP models. They build and read models and never call solve."""

if __name__ != "schedc.models":  # found from the repository's root
    raise ImportError("found models as a package of its own, expected it in schedc: import schedc.models")

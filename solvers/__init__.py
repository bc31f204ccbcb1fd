"""How a schedule is sought: templates and heuristics."""

if __name__ != "schedc.solvers":  # found from the repository's root
    raise ImportError("found solvers as a package of its own, expected it in schedc: import schedc.solvers")

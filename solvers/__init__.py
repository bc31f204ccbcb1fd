"""How a schedule is sought: templates and heuristics."""

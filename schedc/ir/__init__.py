"""The three representations, Problem, Schedule and Plan, and the ops that they are made of. Frozen data, no algorithms."""

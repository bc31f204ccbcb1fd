"""CP-SAT and MILP as solvers, and refutation: schedules with proofs."""

"""Formulations: what is sought, as CP-SAT and MILP models. They build and read models and never call solve."""

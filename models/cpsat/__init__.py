"""The CP-SAT formulation (CrossPipe 4.1, appendix D): variables, constraints, objective, extraction."""

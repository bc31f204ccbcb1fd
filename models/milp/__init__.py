"""The MILP formulation (CrossPipe 4.1 and appendix D), in PuLP: variables, constraints, objective, extraction."""

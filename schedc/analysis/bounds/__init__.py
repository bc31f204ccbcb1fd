"""Lower bounds on the makespan, each with its proof; one file for each."""

"""Lower bounds that hold for every layout which a job leaves open, with their proofs."""

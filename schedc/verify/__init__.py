"""The verifiers of the three representations: one function per rule; they return every violation, with its place."""

"""Our own files: plan, profile, topology and trace, read and written; the schema of the plan."""

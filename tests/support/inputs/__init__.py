"""What tests and benchmarks are run on: problems, jobs, plans, layouts, traces, noise."""

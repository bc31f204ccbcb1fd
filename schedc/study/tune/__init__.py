"""What to run on a cluster: each way to divide its devices as a job of its own, the best of them as a plan."""

"""Files in, Workload and Layout out, and the Problem that these are: job, profile, topology; the job's JSON Schema."""

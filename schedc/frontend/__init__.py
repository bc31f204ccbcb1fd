"""Files in, Problem out: job, profile, topology, partition, placement."""

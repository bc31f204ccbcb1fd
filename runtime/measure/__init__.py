"""Recording steps: what an observer is called with, on one clock for all ranks."""

"""Recording steps: what an observer hears, on one clock for all ranks."""

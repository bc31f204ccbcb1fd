"""What every method relies on: the incumbent, limits, interruptions, failures, and what a proof says."""

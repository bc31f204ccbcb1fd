"""The verifier of schedules."""

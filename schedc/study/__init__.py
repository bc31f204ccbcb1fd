"""What compiles many problems, or one in many ways: benchmark sets, sweeps, tuning, plans for many states, explanations."""

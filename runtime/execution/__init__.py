"""What a plan means to one rank: its program, executor, wires and channels."""

"""What a plan means to one rank: its executor, wires and channels."""

"""What carries a wire's tensors from one rank to another; one module for each way."""

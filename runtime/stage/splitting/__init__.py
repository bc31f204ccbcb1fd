"""What makes of one backward two: B, the gradients of the inputs, and W, those of the weights."""

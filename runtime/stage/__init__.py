"""What a block does: a stage's F, B and W on autograd, recomputation, precision, losses."""

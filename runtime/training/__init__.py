"""What a training job does over all ranks besides steps: clipping, loss scaling, tied weights, checkpoints."""

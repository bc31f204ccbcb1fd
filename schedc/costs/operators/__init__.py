"""What each part of a model computes, moves and keeps: operators of attention, feed-forward layers, Mamba, blocks, the ends."""

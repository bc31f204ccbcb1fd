"""What each part of a model computes, moves and keeps: operators of sublayers, blocks, the ends."""

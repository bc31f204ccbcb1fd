"""What a layout is worth, in a fraction of a millisecond: a draft written into the list scheduler, and a few rules run."""

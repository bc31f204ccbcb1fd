"""What all rooms of the runtime share: a rank's program, the values and kinds of its messages, process groups, failures."""

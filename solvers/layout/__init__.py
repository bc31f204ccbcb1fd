"""Layouts: partition, placement and recomputation chosen together with the schedule."""

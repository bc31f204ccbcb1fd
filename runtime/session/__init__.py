"""From a plan's file to steps: load, accept, step, move to another plan."""

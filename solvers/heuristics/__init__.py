"""Constructive methods that run the list scheduler: greedy, PipeMorph, the table of rules."""

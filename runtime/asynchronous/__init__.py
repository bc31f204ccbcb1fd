"""Runs of steps that overlap: weights by version, updates as ops of the plan, corrections of delays; only such jobs load it."""

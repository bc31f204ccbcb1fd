"""Searches from a known schedule: over rules, over orders."""

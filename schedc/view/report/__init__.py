"""The report of a plan: one HTML page that needs no network, with the step over time and the figures of the plan."""

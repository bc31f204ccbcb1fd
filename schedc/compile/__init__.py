"""The driver: verify, bound, solve, verify, lower, verify; for one layout, and where the layout is open."""

"""Down to what executes: Workload + Layout → Problem, placements by name; Schedule → Plan."""

"""Questions about a Problem, a Schedule or a Plan, answered without changing it: times, memory, lower bounds."""

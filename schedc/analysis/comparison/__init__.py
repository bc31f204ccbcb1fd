"""A plan beside a recording of it: what was late, why, and what blocks and links really cost."""

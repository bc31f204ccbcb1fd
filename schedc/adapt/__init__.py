"""A plan for what has changed: other orders, layers that move, nodes that change places; and the process that is asked for them."""

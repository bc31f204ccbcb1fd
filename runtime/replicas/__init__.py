"""What must happen between data-parallel replicas, and between stages that hold the same weights."""

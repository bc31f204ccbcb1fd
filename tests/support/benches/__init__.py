"""What several benchmarks share, and no test."""

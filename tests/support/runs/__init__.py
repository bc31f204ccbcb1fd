"""What the rank processes of tests and benchmarks run, beside the same model without a pipeline."""

"""The list scheduler, and the evaluator of orders."""

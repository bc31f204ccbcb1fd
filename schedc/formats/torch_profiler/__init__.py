"""Traces of PyTorch's profiler in: a profile of the stages of its pipelines."""

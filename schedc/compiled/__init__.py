"""Kernels: functions that run plain, or compiled by numba, from one source."""

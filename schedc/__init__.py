"""schedc, a compiler for pipeline-parallel training schedules.

A job (profiled costs, topology, memory limit) goes in, a verified plan with an optimality certificate comes out. The command line
is `schedc`; from Python, `schedc.compile.compile_problem` does the same, and `schedc.runtime` executes plans.
"""

__version__ = "0.1.0"

"""Named sets of instances with the values published for them, and the runner that sets methods side by side on them.

It is beside `schedc.compile.driver`, which it calls, and below `schedc.cli`, which shows what it finds.
"""

"""The commands that write a plan in another tool's format, and check such files."""

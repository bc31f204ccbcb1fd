"""The plan file: its shape, its tokens, reading and writing it."""

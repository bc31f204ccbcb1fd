"""Files and processes: bytes in, tables checked against types, one-line errors, outputs whole or not at all; child processes."""

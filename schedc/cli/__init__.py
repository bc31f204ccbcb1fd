"""The command line: a command parses its options, makes one call, and renders what comes back."""

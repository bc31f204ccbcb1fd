"""Methods by name, and which of them work on a problem."""

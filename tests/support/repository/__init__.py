"""What is read of the repository: imports, outputs on pages, the code of other commits."""

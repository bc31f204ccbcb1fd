"""`python -m schedc` is the command `schedc`."""

from schedc.cli.app import main

main()

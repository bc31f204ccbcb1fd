"""What the suite itself needs: its surroundings, the command line in the test's process, packages that may be missing."""

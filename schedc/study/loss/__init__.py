"""Wall-clock time to a loss: how many updates a run with delays needs, and how long each takes."""

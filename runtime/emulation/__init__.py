"""Running a plan truthfully on one machine: a process for each rank, real channels, delays for links, waiting for compute."""

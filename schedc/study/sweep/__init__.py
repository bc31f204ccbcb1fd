"""Many jobs, one table: the jobs that a sweep file names are compiled here or on a cluster, and nothing is done twice."""

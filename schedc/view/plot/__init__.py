"""Pictures for papers and slides: a plan as a Gantt chart, and curves from the table of a sweep or of tune."""

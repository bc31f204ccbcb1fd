"""Commands that show what a plan does: a page, plots, an explanation."""

"""Which node of a data-parallel job takes which replica and rank: slow links go where they cost least."""

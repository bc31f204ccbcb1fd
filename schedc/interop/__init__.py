"""One folder for each foreign tool, with all that knows its format."""

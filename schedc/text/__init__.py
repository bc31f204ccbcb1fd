"""Reading and writing: the plan file and the JSON Schemas of both files."""

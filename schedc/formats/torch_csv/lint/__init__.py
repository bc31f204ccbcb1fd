"""The linter of PyTorch's schedule CSVs; it shares no code with the exporter."""

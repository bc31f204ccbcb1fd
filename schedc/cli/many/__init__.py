"""Commands that compile many problems: bench, sweep, tune."""

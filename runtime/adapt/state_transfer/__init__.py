"""A training state on its way from process to process: its pieces, their ways, and the exchange of places."""

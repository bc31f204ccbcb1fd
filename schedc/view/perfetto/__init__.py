"""Pictures for Perfetto (ui.perfetto.dev)."""

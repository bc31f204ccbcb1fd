"""Child processes that answer questions, one after another: they end with whoever asks, and tell how much memory they took."""

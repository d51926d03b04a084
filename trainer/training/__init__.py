"""Training: optimiser, loop, session and records."""

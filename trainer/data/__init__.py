"""Data: seeded random numbers, token files and batches."""

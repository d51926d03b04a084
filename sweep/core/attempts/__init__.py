"""Attempts: outcomes and their evidence, the ledger's events, and the history that they add up to."""

"""Decisions: from what is known to what is done next."""

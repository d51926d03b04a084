"""Verbs: one module for each command."""

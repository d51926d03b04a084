"""Runs on every node of a job: starts the ranks, passes signals on, and leaves no process behind."""

"""Runs on every node of a job: starts the ranks, passes signals on, leaves nothing behind."""

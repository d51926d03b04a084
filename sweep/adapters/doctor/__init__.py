"""Checks of a machine and of a Slurm cluster for ``doctor``."""

"""Implementations of the ports: Slurm, local processes, and the files of a run directory."""

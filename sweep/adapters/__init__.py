"""Implementations of the ports: Slurm, local processes, simulator, run directories and the ledger file."""

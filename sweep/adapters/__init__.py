"""Implementations of the ports: Slurm, local processes, the simulator, run directories and the ledger file."""

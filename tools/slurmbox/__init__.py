"""The parts of tools/private_slurm.py, which runs a private Slurm on one machine."""

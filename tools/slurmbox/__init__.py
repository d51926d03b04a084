"""The parts of tools/private_slurm.py: a private Slurm on one machine."""

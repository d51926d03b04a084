"""The checks of ``doctor``: of this machine and of a Slurm cluster."""

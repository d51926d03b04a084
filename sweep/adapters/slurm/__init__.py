"""Slurm: the scheduler port over sbatch, squeue, sacct and scontrol."""

"""The limits, partitions, reservations and nodes of a Slurm cluster."""

#!/bin/bash

# Parameters
#SBATCH --job-name=weak_scaling-7b-3f2a
#SBATCH --no-requeue
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/weak_scaling-slurm/submissions/logs/weak_scaling-7b-3f2a-%j.log
#SBATCH --signal=USR2@60
#SBATCH --time=60

# setup
export PYTHONPATH=/shared/runs/weak_scaling-slurm/sources/0123abcd${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --label --kill-on-bad-exit=1 --wait=60 --export=ALL /shared/env/bin/python -m sweep.launch --submission /shared/runs/weak_scaling-slurm/submissions/weak_scaling-7b-3f2a.json

#!/bin/bash

# Parameters
#SBATCH --account=ml-systems
#SBATCH --array=0-2%3
#SBATCH --comment='it'"'"'s "ours" #1'
#SBATCH --constraint='[rack1|rack2]'
#SBATCH --cpus-per-task=96
#SBATCH --exclude='gpu[13,17]'
#SBATCH --exclusive
#SBATCH --gres=gpu:8
#SBATCH --job-name=weak_scaling-7b-3f2a
#SBATCH --mail-type=END
#SBATCH --mem=0
#SBATCH --nice
#SBATCH --no-requeue
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/weak_scaling-slurm/submissions/logs/weak_scaling-7b-3f2a-%A_%a.log
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --reservation='scaling week'
#SBATCH --signal=USR2@120
#SBATCH --switches=1@10:00
#SBATCH --time=60

# setup
module load cuda/12.8
source "$HOME/env.sh"  # as written
export PYTHONPATH=/shared/runs/weak_scaling-slurm/sources/0123abcd${PYTHONPATH:+:$PYTHONPATH}
export PYTHONSAFEPATH=1

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --label --kill-on-bad-exit=1 --wait=60 --export=ALL --cpus-per-task=96 --mpi=pmix '--container-image=ngc/pytorch:25.01 x' apptainer exec --nv $SIF /shared/env/bin/python -m sweep.launch --submission /shared/runs/weak_scaling-slurm/submissions/weak_scaling-7b-3f2a.json

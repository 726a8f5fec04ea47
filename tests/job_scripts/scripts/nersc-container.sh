#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=2 --gpus-per-node=2 --time=30
export SHIFTER=${SHIFTER:-0}
DATADIR=${DATADIR:-$PWD/data}
LOGDIR=logs/$SLURM_JOB_NAME
mkdir -p $LOGDIR
srun -l apptainer exec --nv --bind $DATADIR:/data image.sif python train.py --data /data --log $LOGDIR

#!/bin/bash
#SBATCH --array=1-4
#SBATCH --time=0:10:0 --mem=1G --cpus-per-task=2

PARAMS=$(sed "${SLURM_ARRAY_TASK_ID}q;d" table.dat)
set -- $PARAMS
mkdir -p results/case_$SLURM_ARRAY_TASK_ID
cd results/case_$SLURM_ARRAY_TASK_ID
python ../../train.py --alpha $1 --beta $2 > output.txt

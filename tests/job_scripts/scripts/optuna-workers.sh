#!/bin/bash
#SBATCH --array=0-3
#SBATCH --ntasks=1 --cpus-per-task=4 --time=6:00:00

STORAGE="sqlite:///study.db"
STUDY=${STUDY:-resnet}
[ "$SLURM_ARRAY_TASK_ID" -eq 0 ] && python create_study.py --storage "$STORAGE" --name "$STUDY"
python optimize.py --storage "$STORAGE" --study-name "$STUDY" --worker $SLURM_ARRAY_TASK_ID --n-trials 25

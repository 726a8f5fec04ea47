#!/bin/bash
#SBATCH --array=0-99
#SBATCH --time=30:00
#SBATCH --mem=4G
LRS=(0.1 0.01 0.001)
COMMAND=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" commands.txt)
echo "running: $COMMAND"
eval "$COMMAND"

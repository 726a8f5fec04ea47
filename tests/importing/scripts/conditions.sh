#!/bin/bash
#SBATCH --array=1-3
case $SLURM_ARRAY_TASK_ID in
  1) LR=0.1 ;;
  2) LR=0.2 ;;
  *) LR=0.3 ;;
esac
if [ "$1" == "debug" ]; then EXTRA="--debug"; fi
python train.py --lr $LR ${EXTRA:-} --config ${CONFIGS[$SLURM_ARRAY_TASK_ID]}

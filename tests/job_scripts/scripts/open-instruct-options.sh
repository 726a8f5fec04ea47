#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:4 --time=1:00:00

MODEL=small; TASK=sft; CONFIG=demo; ACCELERATOR=zero3; EXTRA=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --model) MODEL="$2"; shift 2 ;;
    --task) TASK="$2"; shift 2 ;;
    --config) CONFIG="$2"; shift 2 ;;
    --accelerator) ACCELERATOR="$2"; shift 2 ;;
    --args) EXTRA="$2"; shift 2 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
done
if [[ -z "$TASK" || -z "$MODEL" ]]; then echo "missing"; exit 1; fi
CONFIG_FILE=recipes/$MODEL/$TASK/config_$CONFIG.yaml
ACC=$(grep 'gradient_accumulation_steps' $CONFIG_FILE | awk '{print $2}')
export CMD="src/$TASK.py --config $CONFIG_FILE $EXTRA"
export LAUNCHER="accelerate launch --config_file recipes/$ACCELERATOR.yaml --gradient_accumulation_steps $ACC --num_machines $SLURM_NNODES --num_processes 4 --main_process_ip $(hostname)"
clear 2> /dev/null
srun --wait=60 --kill-on-bad-exit=1 bash -c "$LAUNCHER --role \$SLURM_PROCID: $CMD" 2>&1

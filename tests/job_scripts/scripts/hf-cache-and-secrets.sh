#!/bin/bash
#SBATCH --cpus-per-task=4 --mem=8G --time=20
export HF_HOME=$PWD/.cache/hf TRANSFORMERS_OFFLINE=1
[ -f .secrets ] && { set -a; . ./.secrets; set +a; }
export WANDB_RUN_GROUP="${SLURM_JOB_NAME}-group" WANDB_TAGS="a,b c"
python -u train.py --report_to wandb --run_name "$(git rev-parse --short HEAD 2> /dev/null || echo none)"

#!/bin/bash
#SBATCH --array=1-3%2 --gres=gpu:1 --cpus-per-task=2 --mem=4G --time=1:00:00

export WANDB_MODE=offline WANDB_API_KEY=${WANDB_API_KEY:-none}
SWEEP=team/project/abc123
cd "$SLURM_SUBMIT_DIR"
wandb agent --count 1 $SWEEP

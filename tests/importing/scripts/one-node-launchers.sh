#!/bin/bash
#SBATCH --nodes=1 --gpus=4
#SBATCH --cpus-per-task=16 --mem-per-cpu=4G --time=2:00:00
conda activate llm
export HF_HUB_OFFLINE=1
accelerate launch --multi_gpu --num_processes=4 --mixed_precision bf16 finetune.py --model base --name "a 'b'"
